//! Making, removing and renaming entries.
//!
//! Each asks the rule of the entry's own path. A generated file is no entry that could be removed,
//! renamed or replaced.

use std::ffi::OsStr;

use nix::errno::Errno;
use nix::fcntl::{OFlag, RenameFlags};
use nix::libc;
use nix::sys::stat::SFlag;

use super::namespace::{Changing, Staying};
use super::{Entry, Ops, lock};
use crate::attr::Kind;
use crate::error::{Error, Result};
use crate::host::{self, Made, Owner, Pin};
use crate::inode::Identity;
use crate::tree::{Refusal, RelPath, Rule, Tree};

/// What a rename does to what already has the new name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RenameMode {
    Replace,
    /// `EEXIST`.
    Refuse,
    Exchange,
}

impl<T: Tree> Ops<T> {
    pub(crate) fn mkdir(&self, parent: u64, name: &OsStr, made: &Made) -> Result<Entry> {
        self.making(parent, name, |directory| directory.make_dir(name, made))?;
        self.lookup(parent, name)
    }

    pub(crate) fn symlink(&self, parent: u64, name: &OsStr, target: &OsStr, owner: Owner) -> Result<Entry> {
        self.making(parent, name, |directory| directory.make_symlink(name, target, owner))?;
        self.lookup(parent, name)
    }

    /// A regular file, a pipe, a socket or, by whom the kernel has let make it, a device: it opens for nobody here.
    pub(crate) fn mknod(&self, parent: u64, name: &OsStr, made: &Made, device: u64) -> Result<Entry> {
        self.making(parent, name, |directory| match made.mode & libc::S_IFMT {
            libc::S_IFREG => directory.create_file(name, OFlag::O_WRONLY, made).map(drop),
            libc::S_IFIFO => directory.make_node(name, SFlag::S_IFIFO, 0, made),
            libc::S_IFSOCK => directory.make_node(name, SFlag::S_IFSOCK, 0, made),
            libc::S_IFCHR => directory.make_node(name, SFlag::S_IFCHR, device, made),
            libc::S_IFBLK => directory.make_node(name, SFlag::S_IFBLK, device, made),
            _ => Err(Error::host("mknod")(Errno::EPERM)),
        })?;
        self.lookup(parent, name)
    }

    /// Gives `ino` the further name `name`. Refused for
    /// what lies in a read-only place: through another name it could be changed.
    pub(crate) fn link(&self, ino: u64, parent: u64, name: &OsStr) -> Result<Entry> {
        self.check_not_frozen(ino)?;
        self.meet((ino, OsStr::new("")), (parent, name));
        {
            // Where it is must not become read-only meanwhile, which may be in another part of the tree.
            let _names_stay = self.both_stay(ino, (parent, name))?;
            self.check_accounts(&self.path(ino)?, &self.entry((parent, name))?, RenameMode::Exchange)?;
            self.make(parent, name, |directory| {
                let target = self.pin_for_change(ino)?;
                directory.make_link(name, &target)
            })?;
            if self.tree.shares_links(&self.path(ino)?) {
                lock(&self.nodes).table.share(ino);
            }
        }
        self.lookup(parent, name)
    }

    pub(crate) fn unlink(&self, parent: u64, name: &OsStr) -> Result<()> {
        self.remove(parent, name, |directory| directory.remove_file(name))
    }

    pub(crate) fn rmdir(&self, parent: u64, name: &OsStr) -> Result<()> {
        self.remove(parent, name, |directory| directory.remove_dir(name))
    }

    pub(crate) fn rename(&self, from: (u64, &OsStr), to: (u64, &OsStr), mode: RenameMode, by: u32) -> Result<()> {
        self.meet(from, to);
        let _names_change = self.names_change(from, to)?;
        let source = self.holder(from, Self::check_removable)?;
        let target = self.holder(to, Self::check_writable)?;
        // What is half-written, or mapped, would be changed in spite of all.
        if self.would_freeze_writers(from, to) {
            return Err(Error::Busy);
        }
        if mode != RenameMode::Refuse {
            self.check_not_generated(to)?;
        }
        if mode == RenameMode::Exchange {
            self.check_removable(&self.path(to.0)?.join(to.1).map_err(Error::Name)?)?;
        }
        let moved = source.child(from.1)?;
        self.check_links(&moved, from, to)?;
        let was = target.child(to.1).ok();
        let paths = (self.entry(from)?, self.entry(to)?);
        self.check_accounts(&paths.0, &paths.1, mode)?;
        let _losing = self.losing(&paths.1);
        let directories = [(from.0, &source), (to.0, &target)];
        let directories = if from.0 == to.0 { &directories[..1] } else { &directories[..] };
        self.noted_in(&paths.1, directories, || {
            self.rename_if_agreed(&paths, mode, by, || host::rename((&source, from.1), (&target, to.1), flags(mode)))
        })?;
        self.moved(&paths.0, &paths.1);
        // Between two names of one file the disk changes nothing, so neither does the table.
        if was.as_ref().map(Pin::identity) != Some(moved.identity()) {
            let lost = self.lost(&paths.1, to, was.filter(|_| mode != RenameMode::Exchange));
            let mut nodes = lock(&self.nodes);
            let ino = nodes.table.child(to.0, to.1);
            let gone = nodes.rename(from, to, mode, lost.map(|lost| self.orphaned(ino, lost)));
            drop(nodes);
            self.freed(gone);
        }
        Ok(())
    }

    pub(super) fn entry(&self, (parent, name): (u64, &OsStr)) -> Result<RelPath> {
        self.path(parent)?.join(name).map_err(Error::Name)
    }

    /// A file with several names that are one inode does not move to where they are not: it is copied there.
    fn check_links(&self, moved: &Pin, from: (u64, &OsStr), to: (u64, &OsStr)) -> Result<()> {
        let shares = |(parent, name): (u64, &OsStr)| -> Result<bool> {
            Ok(self.tree.shares_links(&self.path(parent)?.join(name).map_err(Error::Name)?))
        };
        let attr = moved.attr();
        if attr.nlink > 1 && attr.kind != Kind::Directory && shares(from)? != shares(to)? {
            return Err(Error::host("rename")(Errno::EXDEV));
        }
        Ok(())
    }

    /// Looks at what lies in two parts of the tree before names of both are held: one whose disk hangs is met here, where it holds
    /// up nobody in the other.
    fn meet(&self, from: (u64, &OsStr), to: (u64, &OsStr)) {
        let home = |(ino, name): (u64, &OsStr)| self.home(ino, Some(name));
        if home(from) != home(to) {
            // What cannot be looked at is told by what comes next.
            drop((self.pin_even_nameless(from.0), self.pin_even_nameless(to.0)));
        }
    }

    /// Holds both parts of the tree, so that nobody else uses these names.
    fn names_change(&self, from: (u64, &OsStr), to: (u64, &OsStr)) -> Result<Changing<'_>> {
        let part = |(parent, name): (u64, &OsStr)| -> Result<usize> {
            Ok(self.namespace.part(&self.path(parent)?.join(name).map_err(Error::Name)?))
        };
        loop {
            let wanted = (part(from)?, part(to)?);
            let held = self.namespace.change(wanted.0, wanted.1);
            // Their directories may have been taken to other parts meanwhile.
            if (part(from)?, part(to)?) == wanted {
                return Ok(held);
            }
        }
    }

    /// Holds the part of `ino` and that of the entry, so that both paths stay as they are.
    fn both_stay(&self, ino: u64, (parent, name): (u64, &OsStr)) -> Result<Staying<'_>> {
        let parts = || -> Result<(usize, usize)> {
            let entry = self.path(parent)?.join(name).map_err(Error::Name)?;
            Ok((self.namespace.part(&self.path(ino)?), self.namespace.part(&entry)))
        };
        loop {
            let wanted = parts()?;
            let held = self.namespace.stay_both(wanted.0, wanted.1);
            if parts()? == wanted {
                return Ok(held);
            }
        }
    }

    fn rename_if_agreed(
        &self,
        (from, to): &(RelPath, RelPath),
        mode: RenameMode,
        by: u32,
        rename: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        self.tree.renaming(from, to, by).map_err(Error::io("rename"))?;
        let back = match mode {
            RenameMode::Exchange => self.tree.renaming(to, from, by).map_err(Error::io("rename")),
            RenameMode::Replace | RenameMode::Refuse => Ok(()),
        };
        let done = back.and_then(|()| rename());
        self.tree.renamed(from, to, done.is_ok());
        if mode == RenameMode::Exchange {
            self.tree.renamed(to, from, done.is_ok());
        }
        done
    }

    /// Makes the new entry `name` in `parent` by `make`, while no rename can put another rule in force there. A generated
    /// file of that name exists already.
    fn making<R>(&self, parent: u64, name: &OsStr, make: impl FnOnce(&Pin) -> Result<R>) -> Result<R> {
        let _names_stay = self.names_stay(parent, Some(name))?;
        self.make(parent, name, make)
    }

    /// As [`Self::making`], for a caller that holds the namespace.
    pub(super) fn make<R>(&self, parent: u64, name: &OsStr, make: impl FnOnce(&Pin) -> Result<R>) -> Result<R> {
        let directory = self.holder((parent, name), Self::check_writable)?;
        let path = self.path(parent)?.join(name).map_err(Error::Name)?;
        if self.is_generated(&path)? {
            return Err(Error::host("create")(Errno::EEXIST));
        }
        self.charged_entry(&path, (parent, &directory), || make(&directory), || directory.child(name))
    }

    fn remove(&self, parent: u64, name: &OsStr, remove: impl FnOnce(&Pin) -> Result<()>) -> Result<()> {
        let _names_stay = self.names_stay(parent, Some(name))?;
        let directory = self.holder((parent, name), Self::check_removable)?;
        let was = directory.child(name).ok();
        let path = self.path(parent)?.join(name).map_err(Error::Name)?;
        let _losing = self.losing(&path);
        self.noted_in(&path, &[(parent, &directory)], || remove(&directory))?;
        let lost = self.lost(&path, (parent, name), was);
        let mut nodes = lock(&self.nodes);
        let ino = nodes.table.child(parent, name);
        let gone = nodes.unlink(parent, name, lost.map(|lost| self.orphaned(ino, lost)));
        drop(nodes);
        self.freed(gone);
        Ok(())
    }

    /// The directory of an entry whose path passes `check`; the caller holds the namespace.
    fn holder(&self, (parent, name): (u64, &OsStr), check: impl FnOnce(&Self, &RelPath) -> Result<()>) -> Result<Pin> {
        let (directory, path) = self.pin_while_names_stay(parent)?;
        check(self, &path.join(name).map_err(Error::Name)?)?;
        Ok(directory)
    }

    fn check_removable(&self, path: &RelPath) -> Result<()> {
        match self.tree.rule(path) {
            Rule::Hidden => Err(Error::NotFound),
            Rule::ReadOnly => Err(match self.tree.refusal(path) {
                Refusal::ReadOnly => Error::ReadOnly,
                Refusal::Busy => Error::Busy,
            }),
            Rule::ReadWrite if self.is_generated(path)? => Err(Error::ReadOnly),
            Rule::ReadWrite => Ok(()),
        }
    }

    fn check_not_generated(&self, (parent, name): (u64, &OsStr)) -> Result<()> {
        let path = self.path(parent)?.join(name).map_err(Error::Name)?;
        match self.is_generated(&path)? {
            true => Err(Error::ReadOnly),
            false => Ok(()),
        }
    }

    fn is_generated(&self, path: &RelPath) -> Result<bool> {
        // The disk is not asked where it does not matter: most places generate nothing.
        match self.generated_attr(path) {
            Ok(_) => {}
            Err(Error::NotFound) => return Ok(false),
            Err(error) => return Err(error),
        }
        match self.find(path) {
            Ok((identity, _)) => Ok(identity == Identity::Generated),
            Err(Error::NotFound) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

fn flags(mode: RenameMode) -> RenameFlags {
    match mode {
        RenameMode::Replace => RenameFlags::empty(),
        RenameMode::Refuse => RenameFlags::RENAME_NOREPLACE,
        RenameMode::Exchange => RenameFlags::RENAME_EXCHANGE,
    }
}
