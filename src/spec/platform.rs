//! Which platform a script was written for, which framework it trains with, and how the framework's parts work together:
//! names only. What follows from them is said by `contract`, and for roles by [`super::strategy`].

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use super::near::nearness;

/// The platform whose directories, variables and arguments a script expects, with the variety of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Contract {
    pub platform: Platform,
    pub profile: Profile,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Platform {
    Native,
    SageMaker,
    Tione,
    Pai,
    Google,
    AzureMl,
    ModelArts,
    Uai,
    Paddle,
    OpenPai,
    Volcano,
    Kubeflow,
    Mpi,
}

/// A variety of a platform.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Profile {
    /// The platform as it is now.
    Plain,
    /// An older generation of it.
    Old,
    Dlc,
    PaiTf,
    Vertex,
    Octopus,
    Swarm,
    Arena,
    Xiaomi,
    Caicloud,
    Aihc,
    PsFlags,
    Nauta,
    Bcp,
}

/// Every contract as it is written.
pub const CONTRACTS: &[(&str, Platform, Profile)] = &[
    ("native", Platform::Native, Profile::Plain),
    ("sagemaker", Platform::SageMaker, Profile::Plain),
    ("tione", Platform::Tione, Profile::Plain),
    ("tione/1", Platform::Tione, Profile::Old),
    ("pai", Platform::Pai, Profile::Plain),
    ("pai/dlc", Platform::Pai, Profile::Dlc),
    ("pai/tf", Platform::Pai, Profile::PaiTf),
    ("google", Platform::Google, Profile::Plain),
    ("google/vertex", Platform::Google, Profile::Vertex),
    ("azureml", Platform::AzureMl, Profile::Plain),
    ("modelarts", Platform::ModelArts, Profile::Plain),
    ("modelarts/1", Platform::ModelArts, Profile::Old),
    ("uai", Platform::Uai, Profile::Plain),
    ("paddle", Platform::Paddle, Profile::Plain),
    ("paddle/old", Platform::Paddle, Profile::Old),
    ("openpai", Platform::OpenPai, Profile::Plain),
    ("volcano", Platform::Volcano, Profile::Plain),
    ("volcano/octopus", Platform::Volcano, Profile::Octopus),
    ("kubeflow", Platform::Kubeflow, Profile::Plain),
    ("kubeflow/swarm", Platform::Kubeflow, Profile::Swarm),
    ("kubeflow/arena", Platform::Kubeflow, Profile::Arena),
    ("kubeflow/xiaomi", Platform::Kubeflow, Profile::Xiaomi),
    ("kubeflow/caicloud", Platform::Kubeflow, Profile::Caicloud),
    ("kubeflow/aihc", Platform::Kubeflow, Profile::Aihc),
    ("kubeflow/psflags", Platform::Kubeflow, Profile::PsFlags),
    ("mpi", Platform::Mpi, Profile::Plain),
    ("mpi/nauta", Platform::Mpi, Profile::Nauta),
    ("mpi/bcp", Platform::Mpi, Profile::Bcp),
];

impl Contract {
    pub const NATIVE: Self = Self { platform: Platform::Native, profile: Profile::Plain };

    pub fn is_native(self) -> bool {
        self == Self::NATIVE
    }

    /// Scripts ask which ports each task has; elsewhere a platform fixes one number for all of them.
    pub fn tells_ports(self) -> bool {
        matches!(self.platform, Platform::Native | Platform::OpenPai)
    }
}

impl FromStr for Contract {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "seldon" {
            return Err("Seldon Core serves models; train with another contract and export the model".to_owned());
        }
        let found = CONTRACTS.iter().find(|(name, ..)| *name == text);
        let found = found.map(|&(_, platform, profile)| Self { platform, profile });
        found.ok_or_else(|| match nearest_contract(text) {
            Some(near) => format!("{text:?} is no contract; did you mean {near:?}? `trainyard contract ls` lists them"),
            None => format!("{text:?} is no contract; `trainyard contract ls` lists them"),
        })
    }
}

impl fmt::Display for Contract {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name =
            CONTRACTS.iter().find(|&&(_, platform, profile)| (platform, profile) == (self.platform, self.profile));
        f.write_str(name.map_or("native", |(name, ..)| name))
    }
}

impl Contract {
    /// As [`JobSpec::resumed`](super::JobSpec::resumed), where the file says nothing.
    pub fn resumed(self) -> Option<&'static str> {
        match self.platform {
            Platform::Uai => Some(""),
            Platform::Pai => Some("checkpoints"),
            _ => None,
        }
    }

    /// How long the platform waits between the signal and the kill, where it says so.
    pub fn stop_grace(self) -> Option<Duration> {
        (self.platform == Platform::SageMaker).then_some(Duration::from_secs(120))
    }
}

/// By its whole name, or by that of the variety: `octopus` is `volcano/octopus`.
fn nearest_contract(text: &str) -> Option<&'static str> {
    let near = |name: &'static str| {
        // The numbers of old generations are nobody's names.
        let variety = name.split('/').nth(1).filter(|variety| variety.len() > 1);
        let all = [Some(name), variety].into_iter().flatten().filter_map(|part| nearness(text, part));
        Some((all.min()?, name))
    };
    CONTRACTS.iter().filter_map(|(name, ..)| near(name)).min().map(|(_, name)| name)
}

/// A framework whose cluster variables are made from the roles.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Framework {
    PyTorch,
    TensorFlow,
    MxNet,
    XgBoost,
    Paddle,
    MindSpore,
    Jax,
    Mpi,
    Horovod,
    DeepSpeed,
}

pub const FRAMEWORKS: &[(&str, Framework)] = &[
    ("pytorch", Framework::PyTorch),
    ("tensorflow", Framework::TensorFlow),
    ("mxnet", Framework::MxNet),
    ("xgboost", Framework::XgBoost),
    ("paddle", Framework::Paddle),
    ("mindspore", Framework::MindSpore),
    ("jax", Framework::Jax),
    ("mpi", Framework::Mpi),
    ("horovod", Framework::Horovod),
    ("deepspeed", Framework::DeepSpeed),
];

impl fmt::Display for Framework {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = FRAMEWORKS.iter().find(|(_, framework)| framework == self);
        f.write_str(name.map_or("none", |(name, _)| name))
    }
}

/// How a framework's parts work together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Strategy {
    /// Parameter servers and those that ask them.
    Ps,
    /// All are alike.
    AllReduce,
    /// One leads.
    MasterWorker,
    /// One starts the others.
    Launcher,
}

pub const STRATEGIES: &[(&str, Strategy)] = &[
    ("ps", Strategy::Ps),
    ("allreduce", Strategy::AllReduce),
    ("collective", Strategy::AllReduce),
    ("master-worker", Strategy::MasterWorker),
    ("launcher", Strategy::Launcher),
];

impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = STRATEGIES.iter().find(|(_, strategy)| strategy == self);
        f.write_str(name.map_or("", |(name, _)| name))
    }
}

impl Framework {
    /// What it can be trained by; the first is meant where nothing is said.
    pub fn strategies(self) -> &'static [Strategy] {
        use Strategy::{AllReduce, Launcher, MasterWorker, Ps};
        match self {
            Self::PyTorch | Self::Jax | Self::XgBoost => &[AllReduce, MasterWorker],
            Self::DeepSpeed => &[AllReduce, MasterWorker, Launcher],
            Self::TensorFlow => &[Ps, AllReduce, MasterWorker],
            Self::MxNet => &[Ps],
            Self::Paddle | Self::MindSpore => &[AllReduce, Ps],
            Self::Mpi | Self::Horovod => &[Launcher],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_contract_is_read_as_it_is_written() {
        for (name, ..) in CONTRACTS {
            assert_eq!(name.parse::<Contract>().unwrap().to_string(), *name);
        }
        assert!("seldon".parse::<Contract>().unwrap_err().contains("serves models"));
        for (text, near) in [
            ("kubflow/swarm", "kubeflow/swarm"),
            ("octopus", "volcano/octopus"),
            ("Vertex", "google/vertex"),
            ("sage", "sagemaker"),
            ("volcano-job", "volcano"),
        ] {
            let told = text.parse::<Contract>().unwrap_err();
            assert!(told.contains(&format!("did you mean {near:?}?")), "{told}");
        }
        for text in ["nope", "xx", "1", "cloud", ""] {
            let told = text.parse::<Contract>().unwrap_err();
            assert_eq!(told, format!("{text:?} is no contract; `trainyard contract ls` lists them"));
        }
    }
}
