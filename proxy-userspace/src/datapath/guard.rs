//! Whether everything of ours in the kernel is still as we have left it, and putting it back.
//!
//! Nothing of a node's own should touch it, but other tools can: an unload script, a CNI that
//! clears a device's filters, a bpf file system that is cleaned. Links and maps are held open, so a
//! pin that is lost harms no traffic, only the next start; a link or filter that is lost does.

use std::{
    fmt, fs, io,
    os::fd::{AsFd, BorrowedFd},
    path::Path,
};

use super::{
    attach::{Attached, Attacher, Place},
    clsact::Filters,
    loader,
    pins::Pins,
    sys,
};

/// What was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum What {
    /// A link that runs our program no more.
    Link,
    /// A clsact filter likewise.
    Filter,
    /// The pin of a link.
    LinkPin,
    /// The pin of a map.
    MapPin,
}

impl What {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Link, Self::Filter, Self::LinkPin, Self::MapPin];

    /// As a metric label.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Link => "link",
            Self::Filter => "filter",
            Self::LinkPin => "link-pin",
            Self::MapPin => "map-pin",
        }
    }
}

/// A thing of ours that is not as it must be.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Loss {
    /// Kind of thing.
    pub what: What,
    /// Its name: `tc_ingress-4`, `FLOWS4`.
    pub name: String,
    /// What is wrong with it.
    pub fault: String,
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { what, name, fault } = self;
        write!(f, "{} {name} {fault}", what.label())
    }
}

/// A loss that cannot be repaired.
#[derive(Debug, thiserror::Error)]
#[error("put back {} {name}", what.label())]
pub struct RepairError {
    what: What,
    name: String,
    #[source]
    source: Box<dyn std::error::Error + Send + Sync>,
}

impl Attacher {
    /// Devices on which a filter of ours should be.
    pub fn filtered_devices(&self) -> Vec<u32> {
        let filters = self.attached.values().filter(|attached| attached.link.is_none());
        let mut devices: Vec<u32> = filters
            .filter_map(|attached| match &attached.place {
                Place::Device(target, _) => Some(target.ifindex),
                Place::Cgroup(..) => None,
            })
            .collect();
        devices.dedup();
        devices
    }

    /// The program of each place, but for those of `losses`.
    pub fn programs_in_place(&self, losses: &[Loss]) -> impl Iterator<Item = &'static str> {
        let lost = |name: &str| {
            let of = |loss: &&Loss| matches!(loss.what, What::Link | What::Filter);
            losses.iter().filter(of).any(|loss| loss.name == name)
        };
        self.attached
            .iter()
            .filter(move |(name, _)| !lost(name))
            .map(|(_, attached)| attached.program)
    }

    /// What is lost. A device that is gone is no loss: who follows the network forgets it. Without
    /// `filters` they are not looked at.
    pub fn losses(&self, pins: &Pins, filters: Option<&Filters>) -> Vec<Loss> {
        let mut losses = Vec::new();
        for (name, attached) in &self.attached {
            let loss = |(what, fault): (What, String)| Loss { what, name: name.clone(), fault };
            losses.extend(self.fault(name, attached, filters).map(loss));
        }
        for (name, map) in pins.maps() {
            let id = |fd: BorrowedFd<'_>| sys::map_info(fd).map(|info| info.id);
            if let Some(fault) = pin_fault(&self.paths.map(name), map.as_fd(), id) {
                losses.push(Loss { what: What::MapPin, name: name.to_owned(), fault });
            }
        }
        losses
    }

    fn fault(
        &self,
        name: &str,
        attached: &Attached,
        filters: Option<&Filters>,
    ) -> Option<(What, String)> {
        let gone = match &attached.place {
            Place::Device(target, _) => sys::interface_name(target.ifindex).is_none(),
            Place::Cgroup(..) => false,
        };
        if gone {
            return None;
        }
        let want = self.programs.get(attached.program).map(|fd| sys::program_id(fd.as_fd()));
        let Some(Ok(want)) = want else {
            return Some((What::Link, format!("has no program {}", attached.program)));
        };
        let other = |id| format!("runs program {id}, must run {want}");
        let Some(link) = &attached.link else {
            let found = filters?.iter().find(|((ifindex, hook), _)| {
                name.strip_prefix(hook) == Some(format!("-{ifindex}").as_str())
            });
            return match found {
                None => Some((What::Filter, "is not there".to_owned())),
                Some((_, id)) => (*id != want).then(|| (What::Filter, other(*id))),
            };
        };
        match sys::link_info(link.as_fd()) {
            Err(error) => return Some((What::Link, format!("cannot be read: {error}"))),
            Ok(info) if !attached.place.has(&info) => {
                return Some((What::Link, "is detached".to_owned()));
            }
            Ok(info) if info.prog_id != want => return Some((What::Link, other(info.prog_id))),
            Ok(_) => {}
        }
        let id = |fd: BorrowedFd<'_>| sys::link_info(fd).map(|info| info.id);
        let fault = pin_fault(&self.paths.links().join(name), link.as_fd(), id)?;
        Some((What::LinkPin, fault))
    }

    /// Puts back what was lost. Safe to repeat.
    pub fn repair(&mut self, pins: &Pins, loss: &Loss) -> Result<(), RepairError> {
        self.put_back(pins, loss).map_err(|source| RepairError {
            what: loss.what,
            name: loss.name.clone(),
            source,
        })
    }

    fn put_back(
        &mut self,
        pins: &Pins,
        loss: &Loss,
    ) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        self.make_directories()?;
        if loss.what == What::MapPin {
            let map = pins.maps().find(|(name, _)| *name == loss.name);
            let (name, map) = map.ok_or("there is no such map")?;
            return Ok(sys::replace_pin(map.as_fd(), &self.paths.map(name))?);
        }
        let Some(place) = self.attached.get(&loss.name).map(|attached| attached.place.clone())
        else {
            return Err(Box::from("it is not attached"));
        };
        match place {
            Place::Device(target, _) => self.attach_device(&target)?,
            Place::Cgroup(path, ..) => self.attach_cgroup(&path)?,
        }
        Ok(())
    }

    /// The directories of our pins. One that somebody has removed takes the lock with it, so the
    /// new one is locked anew.
    fn make_directories(&mut self) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        let root = self.paths.root.clone();
        let removed = !root.is_dir();
        for directory in [self.paths.maps(), self.paths.links()] {
            fs::create_dir_all(directory)?;
        }
        if removed {
            self.locks.push(loader::lock(&root)?);
        }
        Ok(())
    }
}

/// What is wrong with the pin of an object that we hold.
fn pin_fault(
    path: &Path,
    held: BorrowedFd<'_>,
    id: impl Fn(BorrowedFd<'_>) -> io::Result<u32>,
) -> Option<String> {
    let pinned = match sys::obj_get(path) {
        Ok(pinned) => pinned,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Some(format!("is not at {}", path.display()));
        }
        Err(error) => return Some(format!("cannot be opened at {}: {error}", path.display())),
    };
    match (id(pinned.as_fd()), id(held)) {
        (Ok(pinned), Ok(held)) if pinned == held => None,
        (Ok(pinned), Ok(held)) => {
            Some(format!("is another object at {}: {pinned}, must be {held}", path.display()))
        }
        (Err(error), _) | (_, Err(error)) => Some(format!("cannot be read: {error}")),
    }
}
