//! What tasks are made from, for each image and user of the roles.

use super::root::{self, Base};
use super::{LocalEngine, failed, told, workdirs};
use crate::engine::{EngineError, Prepare};
use crate::spec::{Image, Role};

/// One for those that are alike.
pub(super) struct Bases<'a>(Vec<(&'a Role, Base)>);

impl<'a> Bases<'a> {
    pub(super) fn of(engine: &LocalEngine, run: &'a Prepare) -> Result<Self, EngineError> {
        let further = workdirs::groups_of(run.owner).map_err(failed("take the owner's rights"))?;
        let mut bases: Vec<(&Role, Base)> = Vec::new();
        for role in &run.spec.roles {
            if !bases.iter().any(|(other, _)| is_alike(other, role)) {
                bases.push((role, engine.base(run, role, &further)?));
            }
        }
        Ok(Self(bases))
    }

    pub(super) fn of_role(&self, role: &Role) -> &Base {
        let found = self.0.iter().find(|(other, _)| is_alike(other, role));
        &found.expect("there is one for each role").1
    }
}

fn is_alike(one: &Role, other: &Role) -> bool {
    (&one.image, &one.user) == (&other.image, &other.user)
}

impl LocalEngine {
    /// What the tasks of a role are made from, once the run has its images.
    fn base(&self, run: &Prepare, role: &Role, further: &[u32]) -> Result<Base, EngineError> {
        let whom = root::Whom { owner: run.owner, further, user: role.user.as_deref() };
        match &role.image {
            Image::Host => Base::of_host(&self.host, &self.subordinates, whom),
            Image::Named(_) | Image::Layout { .. } | Image::OciArchive { .. } | Image::DockerArchive { .. } => {
                let digest = workdirs::image_of(&self.paths, &run.identity, &role.image)?;
                let image = self.images.get(&digest).map_err(told)?;
                Base::of_image(&self.images, image, self.maps_ids, &self.subordinates, whom)
            }
        }
    }
}
