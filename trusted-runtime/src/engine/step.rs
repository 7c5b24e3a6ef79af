//! One step: a pass for each place where the sequences of the step are computed.

use super::{
    Finish, Shared,
    runner::{Runner, Site},
    scheduler::Turn,
    sequence::{Outcome, Sequence},
};
use crate::{Error, linear::Call};
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};
use zeroize::Zeroize;

type Turns<R> = Vec<Turn<Sequence<<R as Runner>::Cache>>>;

impl<R: Runner> Shared<R> {
    /// Runs the turns; answers first, because somebody reads them.
    pub(super) fn step(&self, turns: Turns<R>, logits: &mut Vec<f32>) {
        let (gone, turns): (Turns<R>, Turns<R>) = turns.into_iter().partition(|t| t.sequence.is_over());
        gone.into_iter().for_each(|t| self.commit(t, Err(Error::Cancelled)));
        if self.runner.is_uniform() {
            return self.passes(Site::Evaluator, turns, logits);
        }
        let (delegated, here) = turns.into_iter().partition(|t| t.sequence.site() == Site::Evaluator);
        self.passes(Site::Evaluator, delegated, logits);
        self.passes(Site::Enclave, here, logits);
    }

    /// One pass for all turns; if something is wrong with one of them, a pass for each.
    fn passes(&self, site: Site, mut turns: Turns<R>, logits: &mut Vec<f32>) {
        if turns.is_empty() {
            return;
        }
        match self.pass(site, &mut turns, logits) {
            Ok(outcomes) => turns.into_iter().zip(outcomes).for_each(|(t, o)| self.commit(t, o)),
            Err(error) if turns.len() == 1 => turns.into_iter().for_each(|t| self.commit(t, Err(error.clone()))),
            // All of them have lost the evaluator.
            Err(error @ (Error::Evaluator(_) | Error::Cancelled)) => {
                turns.into_iter().for_each(|t| self.commit(t, Err(error.clone())));
            }
            Err(_) => turns.into_iter().for_each(|t| self.passes(site, vec![t], logits)),
        }
        logits.as_mut_slice().zeroize();
    }

    /// What the turns led to, after one pass for all of them; a panic is an error.
    fn pass(
        &self,
        site: Site,
        turns: &mut Turns<R>,
        logits: &mut Vec<f32>,
    ) -> Result<Vec<Result<Outcome, Error>>, Error> {
        let call = match turns.as_slice() {
            [one] => one.sequence.call().clone(),
            many => Arc::new(Call::shared(many.iter().map(|t| t.sequence.call().clone()).collect())),
        };
        let run = || {
            let mut works: Vec<_> = turns.iter_mut().map(|t| t.sequence.work(t.tokens)).collect();
            let wanted: Vec<bool> = works.iter().map(|w| w.logits).collect();
            self.runner.run(site, &call, &mut works, logits).map(|()| wanted)
        };
        let panicked = |_| Err(Error::Bug("a step panicked".into()));
        let wanted = catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(panicked)?;
        self.track.step(turns.len(), turns.iter().map(|t| t.tokens).sum());
        call.settle(&turns.iter().map(|t| t.tokens).collect::<Vec<_>>());
        let mut rows = logits.chunks_exact_mut(self.runner.vocab());
        let outcomes = turns.iter_mut().zip(wanted).map(|(turn, wanted)| {
            let row = if wanted { rows.next() } else { None };
            let (sequence, tokens) = (&mut turn.sequence, turn.tokens);
            let advance = || sequence.advance(&self.runner, tokens, row, &self.metrics);
            catch_unwind(AssertUnwindSafe(advance)).unwrap_or_else(|_| Err(Error::Bug("sampling panicked".into())))
        });
        Ok(outcomes.collect())
    }

    /// Lets a sequence whose answer is complete go on unseen until its length is a multiple of the agreed one.
    fn unseen(&self, sequence: &mut Sequence<R::Cache>, outcome: Result<Outcome, Error>) -> Result<Outcome, Error> {
        let whole = sequence.made().is_multiple_of(self.limits.answer_multiple.max(1));
        match outcome {
            Ok(Outcome::Continue) if sequence.is_unseen() && whole => Ok(Outcome::Finished(Finish::Length)),
            Ok(Outcome::Finished(finish)) if !whole => {
                sequence.go_on(finish, &self.metrics, &self.track);
                Ok(Outcome::Continue)
            }
            Err(_) if sequence.is_stopped() && !whole => {
                sequence.go_on(Finish::Stop, &self.metrics, &self.track);
                Ok(Outcome::Continue)
            }
            outcome => outcome,
        }
    }

    /// Gives the sequence its next turn later, or ends it. Its cache is freed before its client hears.
    fn commit(&self, mut turn: Turn<Sequence<R::Cache>>, outcome: Result<Outcome, Error>) {
        let outcome = self.unseen(&mut turn.sequence, outcome);
        let over = !matches!(outcome, Ok(Outcome::Continue));
        let mut state = self.lock();
        let ended = state.scheduler.commit(turn, over);
        self.report(&state);
        drop(state);
        let Some(sequence) = ended else { return };
        if sequence.is_unseen() {
            return;
        }
        match outcome {
            Ok(Outcome::Finished(finish)) => sequence.finish(finish, &self.metrics, &self.track),
            Ok(Outcome::Continue) => {}
            Err(_) if sequence.is_stopped() => sequence.finish(Finish::Stop, &self.metrics, &self.track),
            Err(error) => sequence.fail(error, &self.metrics),
        }
    }
}
