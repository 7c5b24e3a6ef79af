use super::*;

const SHAPE: Shape = Shape { layers: 2, heads: 2, head_dim: 3 };

/// Writes positions `from .. to`, whose tokens are their numbers, in all layers.
fn write(cache: &mut KvCache, from: usize, to: usize) {
    let width = SHAPE.heads * SHAPE.head_dim;
    cache.reserve(to - from).expect("room");
    for position in from..to {
        for layer in 0..SHAPE.layers {
            let number = |i: usize| (position * 100 + layer * 10 + i) as f32;
            let keys: Vec<f32> = (0..width).map(number).collect();
            let values: Vec<f32> = keys.iter().map(|k| -k).collect();
            cache.write(layer, position, &keys, &values);
        }
    }
}

fn tokens(from: usize, to: usize) -> Vec<u32> {
    (from..to).map(|t| t as u32).collect()
}

fn fill(cache: &mut KvCache, from: usize, to: usize) {
    write(cache, from, to);
    cache.commit(&tokens(from, to));
}

/// Whether all positions from `from` on are read back.
fn check(cache: &KvCache, from: usize, to: usize) {
    let mut scratch = Zeroizing::default();
    for layer in 0..SHAPE.layers {
        let view = cache.view(layer, from, &mut scratch).expect("pages");
        for head in 0..SHAPE.heads {
            let (mut keys, mut values) = (Vec::new(), Vec::new());
            for (k, v) in view.runs(head, from..to) {
                keys.extend_from_slice(k);
                values.extend_from_slice(v);
            }
            let want = |p: usize, i: usize| (p * 100 + layer * 10 + head * SHAPE.head_dim + i) as f32;
            let want: Vec<f32> = (from..to).flat_map(|p| (0..SHAPE.head_dim).map(move |i| want(p, i))).collect();
            assert_eq!(keys, want);
            assert!(values.iter().zip(&want).all(|(v, w)| *v == -w));
        }
    }
}

#[test]
fn what_is_written_is_read_across_pages_and_windows() {
    let pool = KvPool::new(SHAPE, 9, Box::new(Plaintext));
    let mut cache = pool.cache(Salt::default());
    let mut len = 0;
    for to in [1, 15, 16, 17, 50, 64, 65] {
        write(&mut cache, len, to);
        check(&cache, 0, to);
        cache.commit(&tokens(len, to));
        for from in [0, 1, 15, 16, 17, 33] {
            check(&cache, from.min(to - 1), to);
        }
        assert_eq!((cache.len(), pool.used()), (to, to.div_ceil(PAGE)));
        len = to;
    }
    cache.clear();
    assert_eq!((cache.len(), pool.used(), pool.available()), (0, 4, 9), "four full pages are kept for others");
}

#[test]
fn a_common_beginning_is_shared_within_a_salt() {
    let pool = KvPool::new(SHAPE, 20, Box::new(Plaintext));
    let mut first = pool.cache(Salt::default());
    fill(&mut first, 0, 40);
    let mut second = pool.cache(Salt::default());
    let mut longer = tokens(0, 38);
    assert_eq!(second.reuse(&longer), 32);
    assert_eq!(second.reuse(&longer), 0, "only an empty one takes pages over");
    assert_eq!(pool.used(), 3, "nothing is copied");
    fill(&mut second, 32, 38);
    check(&second, 0, 38);
    longer[20] = 999;
    assert_eq!(pool.cache(Salt::default()).reuse(&longer), 16);
    assert_eq!(pool.cache(Salt::default()).reuse(&tokens(0, 32)), 16, "one token is left to compute");
    assert_eq!(pool.cache(Salt::of(&[0; 32], "")).reuse(&longer), 0);
    let (asked, found) = pool.reused();
    assert_eq!((asked, found), (32 + 32 + 16 + 32, 32 + 16 + 16));
}

#[test]
fn pages_end_and_kept_ones_make_room() {
    let pool = KvPool::new(SHAPE, 4, Box::new(Plaintext));
    let mut first = pool.cache(Salt::default());
    fill(&mut first, 0, 40);
    let mut second = pool.cache(Salt::of(&[1; 32], "a"));
    assert_eq!((second.missing(33), pool.available()), (3, 1));
    let error = second.reserve(33).expect_err("two pages too few").to_string();
    assert_eq!(error, "all 4 pages for keys and values are taken (engine.kv_memory)");
    drop(first);
    assert_eq!(pool.available(), 3, "one page was taken by then");
    fill(&mut second, 0, 33);
    check(&second, 0, 33);
    let mut third = pool.cache(Salt::default());
    assert!(third.reuse(&tokens(0, 40)) <= 16, "the longest unused page has made room");
}
