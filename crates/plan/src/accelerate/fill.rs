use super::largest::Largest;
use super::modules::Modules;
use super::worklist::Worklist;
use crate::module_tree::NodeId;
use crate::{Options, Tier};

/// Devices that are filled one after the other.
pub(super) struct Fill<'m, 'a> {
    modules: &'m Modules<'a>,
    options: &'m Options,
    devices: Vec<Device>,
    list: Worklist,
    largest: Largest,
    /// The number of the device on which each node was placed as a whole, the first being 1; 0 for
    /// the others.
    places: Vec<u32>,
}

/// Devices that were filled.
pub(super) struct Filled {
    places: Vec<u32>,
    pub(super) devices: Vec<Device>,
}

impl Filled {
    /// Where a node was placed as a whole, if it was.
    pub(super) fn place(&self, id: NodeId) -> Option<Tier> {
        let device = (self.places[id] as usize).checked_sub(1)?;
        Some(self.devices[device].tier)
    }

    /// Where each tensor is, in the tree's order.
    pub(super) fn tiers(&self, modules: &Modules<'_>) -> Vec<Tier> {
        let mut places = self.places.clone();
        // Parents come first.
        for id in 0..modules.tree.0.len() {
            if places[id] == 0 {
                places[id] = places[modules.tree.node(id).parent()];
            }
        }
        let tier = |id: &NodeId| {
            let device = (places[*id] as usize).checked_sub(1);
            device.map_or(Tier::Disk, |device| self.devices[device].tier)
        };
        modules.tensors.iter().map(tier).collect()
    }
}

/// Where something can be placed.
pub(super) struct Device {
    pub(super) tier: Tier,
    /// Its budget; none if unbounded.
    budget: Option<u64>,
    /// What is placed on it, and what was left free when it was left, in bytes.
    pub(super) used: u64,
    /// Whether the largest layer must have room on it beside what is placed there.
    main: bool,
    /// The bytes that the first thing would have taken, if nothing was placed on it.
    pub(super) least: Option<u64>,
}

impl Device {
    /// What is used after `bytes` are placed on it and `free` are left free; none if that
    /// overflows.
    fn used_after(&self, bytes: u64, free: u64) -> Option<u64> {
        self.used.checked_add(bytes)?.checked_add(free)
    }

    /// Whether that is within the budget.
    fn fits(&self, bytes: u64, free: u64) -> bool {
        let fits = |budget| self.used_after(bytes, free).is_some_and(|used| used <= budget);
        self.budget.is_none_or(|budget| budget > 0 && fits(budget))
    }

    /// Whether anything more would exceed the budget after this.
    fn fills(&self, bytes: u64, free: u64) -> bool {
        let fills = |budget| self.used_after(bytes, free).is_none_or(|used| used >= budget);
        self.budget.is_some_and(fills)
    }

    /// Whether `bytes` have room in what is left of the budget.
    pub(super) fn has_room(&self, bytes: u64) -> bool {
        self.fits(bytes, 0)
    }
}

impl<'m, 'a> Fill<'m, 'a> {
    /// `budgets` are those of the GPUs and of main memory, in the order in which they are filled;
    /// what has no place there is on disk.
    pub(super) fn new(
        modules: &'m Modules<'a>,
        budgets: &[(Tier, u64)],
        options: &'m Options,
    ) -> Self {
        // Offloaded layers pass through the first GPU, those on disk through main memory before.
        let mut devices: Vec<Device> = budgets
            .iter()
            .enumerate()
            .map(|(at, (tier, bytes))| {
                Device::new(*tier, Some(*bytes), at == 0 || *tier == Tier::Cpu)
            })
            .collect();
        devices.push(Device::new(Tier::Disk, None, false));
        Self {
            modules,
            options,
            devices,
            list: Worklist::new(modules),
            largest: Largest::new(modules),
            places: vec![0; modules.tree.0.len()],
        }
    }

    /// Places everything.
    pub(super) fn run(mut self) -> Filled {
        let mut current = 0;
        while let Some(id) = self.list.first() {
            if !self.step(id, current) {
                current += 1;
            }
        }
        Filled { places: self.places, devices: self.devices }
    }

    /// Places `id` on the device, or splits something so that less is to be placed. False if the
    /// device is to be left.
    fn step(&mut self, id: NodeId, current: usize) -> bool {
        let modules = self.modules;
        self.largest.look_at(modules, id);
        let device = &mut self.devices[current];
        let free = if device.main { self.largest.bytes() } else { 0 };
        let size = modules.tree.node(id).size;
        let tied = self.list.tied(modules, id);
        if device.fits(tied.bytes, free) {
            device.used += tied.bytes;
            self.place(id, current);
            for other in &tied.others {
                self.place(*other, current);
            }
            return true;
        }
        if device.fits(size, free)
            && let Some(other) = tied.others.iter().find(|other| modules.splits(**other))
        {
            self.split(*other);
            return true;
        }
        if device.fills(size, free) && modules.splits(id) {
            self.split(id);
            return true;
        }
        if device.used == 0 {
            if self.options.fallback_allocation
                && let Some(budget) = device.budget.filter(|budget| *budget > 0)
                && let Some(limit) = budget.checked_sub(self.largest.bytes().max(tied.bytes))
                && let Some(found) = self.list.find(modules, id, limit)
            {
                self.list.move_to_front(modules, found);
                return true;
            }
            device.least =
                Some(tied.bytes.saturating_add(free)).filter(|_| device.budget != Some(0));
        }
        device.used = device.used.saturating_add(free);
        false
    }

    fn split(&mut self, id: NodeId) {
        self.list.split(self.modules, id);
        self.largest.split();
    }

    fn place(&mut self, id: NodeId, current: usize) {
        self.places[id] = current as u32 + 1;
        self.list.remove(id);
        self.largest.place(self.modules, id);
    }
}

impl Device {
    fn new(tier: Tier, budget: Option<u64>, main: bool) -> Self {
        Self { tier, budget, used: 0, main, least: None }
    }
}
