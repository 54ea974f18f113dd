//! Files that make several jobs: what they do to them, and what is asked of all of them at once.

use std::collections::BTreeSet;

use super::world::Job;
use super::{Caller, Reconciler, Refusal, TakenIn};
use crate::ids::JobKey;
use crate::intake::{Made, Swept};
use crate::spec::{Diagnostic, JobSpec, sweep};
use crate::store::Store;
use crate::store::record::{Owner, SourceRecord};

impl<S: Store> Reconciler<S> {
    /// A file that makes one job, and may have been a sweep before.
    pub(super) fn plain_file(&mut self, key: &JobKey, source: SourceRecord, spec: JobSpec) {
        if let Some(problem) = self.is_of_sweep(key) {
            return self.stray(file_of(key), vec![problem]);
        }
        self.strays.remove(&file_of(key));
        self.sweep_shrinks(key, &BTreeSet::new());
        self.accepted(key, source, spec);
    }

    pub(super) fn plain_file_refused(&mut self, key: &JobKey, owner: Option<Owner>, diagnostics: Vec<Diagnostic>) {
        match self.is_of_sweep(key) {
            Some(problem) => self.stray(file_of(key), vec![problem]),
            None => self.refused(key, owner, diagnostics),
        }
    }

    /// What is wrong with a file whose name a sweep has given to one of its jobs.
    fn is_of_sweep(&self, key: &JobKey) -> Option<Diagnostic> {
        let sweep = self.jobs.get(key).filter(|job| is_present(job))?.sweep(key)?;
        let message = format!("its name is that of a job of {}, which is a sweep; rename it", file_of(&sweep));
        Some(Diagnostic::of_file(&file_of(key), message))
    }

    pub(super) fn plain_file_removed(&mut self, key: &JobKey) {
        self.sweep_shrinks(key, &BTreeSet::new());
        self.strays.remove(&file_of(key));
        // What goes may have had the name of a job of a sweep, which stays.
        if self.jobs.get(key).is_some_and(|job| job.sweep(key).is_none()) {
            self.file_removed(key);
        }
    }

    pub(super) fn swept(&mut self, key: &JobKey, jobs: Vec<Swept>) {
        if let Some(problem) = self.is_in_the_way(key, &jobs) {
            return self.refused(key, jobs.first().map(|job| job.source.owner), vec![problem]);
        }
        // The file may have been one job before, or one that could not be used.
        self.file_removed(key);
        self.sweep_shrinks(key, &jobs.iter().map(|swept| swept.key.clone()).collect());
        jobs.into_iter().for_each(|swept| self.accepted(&swept.key, swept.source, swept.spec));
        self.tell_those_awaiting(key);
    }

    /// What is wrong with a sweep of which a job has the name of another file.
    fn is_in_the_way(&self, key: &JobKey, jobs: &[Swept]) -> Option<Diagnostic> {
        let is_taken = |swept: &&Swept| {
            self.jobs.get(&swept.key).is_some_and(|job| is_present(job) && job.sweep(&swept.key).as_ref() != Some(key))
        };
        let taken = &jobs.iter().find(is_taken)?.key;
        let message = format!("one of its jobs would be {taken}, but that has a file of its own; rename one");
        Some(Diagnostic::of_file(&file_of(key), message))
    }

    /// What would be said of a good file if it came now: what the machine and its other jobs leave of it. Nothing comes of it.
    pub(super) fn judged(&self, file: &Made) -> Vec<Diagnostic> {
        let key = &file.key;
        let problem = if file.is_sweep() { self.is_in_the_way(key, &file.jobs) } else { self.is_of_sweep(key) };
        if let Some(problem) = problem {
            return vec![problem];
        }
        file.jobs.iter().filter_map(|job| self.why_refused(&job.key, &job.source, &job.spec)).collect()
    }

    /// Whether a good file that was written has been taken in, for each job that it makes: with its text, since whose it is the file
    /// system says.
    pub(super) fn taken_in(&self, file: &Made) -> TakenIn {
        let is_in = |made: &Swept| {
            self.jobs.get(&made.key).is_some_and(|job| {
                // A job of the same text may be of another file.
                let is_it =
                    |source: &SourceRecord| source.text == made.source.text && source.sweep == made.source.sweep;
                let record = &job.record;
                record.file_present && record.invalid.is_empty() && record.source.as_ref().is_some_and(is_it)
            })
        };
        if file.jobs.iter().all(is_in) {
            return TakenIn::Yes;
        }
        match self.judged(file) {
            refused if refused.is_empty() => TakenIn::NotYet,
            refused => TakenIn::Refused(refused),
        }
    }

    /// Whether a file of that name is known to be there, with whatever in it.
    pub(super) fn has_file(&self, key: &JobKey) -> bool {
        let own = self.jobs.get(key).is_some_and(|job| is_present(job) && job.sweep(key).is_none());
        own || self.strays.contains_key(&file_of(key)) || self.jobs_of_sweep(key).next().is_some()
    }

    /// The jobs that the file does not make any more.
    fn sweep_shrinks(&mut self, key: &JobKey, kept: &BTreeSet<JobKey>) {
        for gone in self.jobs_of_sweep(key).filter(|job| !kept.contains(job)).collect::<Vec<_>>() {
            self.file_removed(&gone);
        }
    }

    /// The jobs that a file makes now, if it is a sweep.
    pub(super) fn jobs_of_sweep(&self, key: &JobKey) -> impl Iterator<Item = JobKey> {
        self.known_of_sweep(key).filter(|(_, job)| job.record.file_present).map(|(key, _)| key.clone())
    }

    /// With those that it has made before.
    fn known_of_sweep(&self, key: &JobKey) -> impl Iterator<Item = (&JobKey, &Job)> {
        let prefix = format!("{}{}", key.job, sweep::SEPARATOR);
        let first = prefix.parse().ok().map(|job| JobKey::new(key.workspace.clone(), job));
        let is_near = move |job: &JobKey| job.workspace == key.workspace && job.job.as_str().starts_with(&prefix);
        let jobs =
            first.into_iter().flat_map(|first| self.jobs.range(first..)).take_while(move |(job, _)| is_near(job));
        jobs.filter(|(job, known)| !known.record.removed && known.sweep(job).as_ref() == Some(key))
    }

    /// Asks the same of all jobs of a sweep: what some of them cannot do is told when none can.
    pub(super) fn of_each(
        &mut self,
        key: &JobKey,
        caller: &Caller,
        ask: impl Fn(&mut Self, &Caller, &JobKey) -> Result<String, Refusal>,
    ) -> Result<String, Refusal> {
        let mut jobs: Vec<JobKey> = self.known_of_sweep(key).map(|(key, _)| key.clone()).collect();
        let one = self.jobs.get(key).filter(|job| !job.record.removed);
        if jobs.is_empty() || one.is_some_and(is_present) {
            return ask(self, caller, key);
        }
        // The file was one job before.
        jobs.extend(one.map(|_| key.clone()));
        let (done, refused): (Vec<_>, Vec<_>) = jobs.iter().map(|job| ask(self, caller, job)).partition(Result::is_ok);
        let mut told: Vec<String> = done.into_iter().flatten().collect();
        let refused: Vec<Refusal> = refused.into_iter().filter_map(Result::err).collect();
        if told.is_empty() {
            return Err(Refusal::Each(refused));
        }
        // That some are over, or no longer made by the file, is nothing to be told when the others have been asked.
        let is_news = |refusal: &&Refusal| !matches!(refusal, Refusal::NotRunning { .. } | Refusal::NoFile { .. });
        let others = refused.iter().filter(is_news);
        told.extend(others.map(|refusal| format!("not done: {refusal}")));
        Ok(told.join("\n"))
    }

    /// A sweep is no job of which there is something to show.
    pub(super) fn unknown(&self, caller: &Caller, key: &JobKey) -> Refusal {
        let own = self.known_of_sweep(key).filter(|(key, job)| caller.sees(key, job));
        let jobs: Vec<String> = own.map(|(key, _)| key.to_string()).collect();
        if jobs.is_empty() { Refusal::Unknown(key.clone()) } else { Refusal::Sweep { key: key.clone(), jobs } }
    }
}

/// The path of a job's file below `jobs.d`.
fn file_of(key: &JobKey) -> String {
    format!("{key}.toml")
}

fn is_present(job: &Job) -> bool {
    job.record.file_present && !job.record.removed
}
