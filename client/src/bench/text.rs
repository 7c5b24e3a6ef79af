//! The text that prompts are cut from.

use super::random::Random;

/// Plain English about nothing secret.
pub(super) const TEXT: &str = "\
The lighthouse stood at the end of a long spit of gravel, and whoever kept it walked that way twice a day with a can \
of oil in one hand and a lantern in the other. In winter the spray froze on the stones and the walk took an hour. \
Ships passed far out, small and slow, and their crews never learned the name of the person whose light they steered \
by. A light asks for nothing in return: it says where the rocks are, in the same words, to everybody who looks. \
Down in the village a clockmaker repaired the instruments that the sea had spoiled. She said that a good clock and a \
good light have one thing in common, which is that nobody thinks of them while they work. Her workshop smelled of \
brass and lemon oil. On the wall hung a chart of the coast, drawn by hand two hundred years ago, with every depth in \
fathoms and a margin full of whales. Half of the depths were wrong by now, for sand moves, but the rocks were where \
they had always been. When the new harbour was built, engineers came with sounding lines and theodolites, measured \
for a summer, and drew the same coast again with finer pens. They asked the keeper how often the fog came in. About \
one day in five, said the keeper, and always on the day that you need it least. So they wrote down twenty percent, and \
built a horn that could be heard for nine miles, and the village slept badly ever after.";

/// `count` stretches of `length` tokens each of the text that `tokens` are, which goes round and round. They begin at
/// places that `seed` chooses, different ones as long as there are any.
pub(super) fn cut(tokens: &[u32], count: usize, length: usize, seed: u64) -> Vec<Vec<u32>> {
    let mut starts: Vec<usize> = (0..tokens.len()).collect();
    let mut random = Random::new(seed);
    // Fisher and Yates.
    for last in (1..starts.len()).rev() {
        starts.swap(last, random.below(last + 1));
    }
    let starts = starts.iter().copied().cycle().take(if tokens.is_empty() { 0 } else { count });
    starts.map(|start| tokens.iter().copied().cycle().skip(start).take(length).collect()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_have_their_length_and_repeat_with_their_seed() {
        let tokens: Vec<u32> = (0..10).collect();
        let prompts = cut(&tokens, 12, 25, 3);
        assert_eq!(prompts, cut(&tokens, 12, 25, 3));
        assert_ne!(prompts, cut(&tokens, 12, 25, 4));
        assert!(prompts.iter().all(|p| p.len() == 25 && p.windows(2).all(|w| w[1] == (w[0] + 1) % 10)));
        let different: std::collections::BTreeSet<_> = prompts[..10].iter().map(|p| p[0]).collect();
        assert_eq!((different.len(), prompts.len()), (10, 12));
        assert!(cut(&[], 3, 2, 0).is_empty());
    }
}
