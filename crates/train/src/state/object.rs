//! Objects of the program that are saved with a run.

use std::sync::{Arc, Mutex, PoisonError};

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::model::Commit;

/// An object that can be written as MessagePack.
trait CheckpointObject: Send + Sync {
    fn encode(&self) -> Result<Vec<u8>, String>;

    fn decode(&self, bytes: &[u8]) -> Result<Commit<'static>, String>;
}

impl<T: Serialize + DeserializeOwned + Send + 'static> CheckpointObject for Arc<Mutex<T>> {
    fn encode(&self) -> Result<Vec<u8>, String> {
        let object = self.lock().unwrap_or_else(PoisonError::into_inner);
        rmp_serde::to_vec_named(&*object).map_err(|fault| fault.to_string())
    }

    fn decode(&self, bytes: &[u8]) -> Result<Commit<'static>, String> {
        let loaded = rmp_serde::from_slice(bytes).map_err(|fault| fault.to_string())?;
        let object = self.clone();
        Ok(Box::new(move || *object.lock().unwrap_or_else(PoisonError::into_inner) = loaded))
    }
}

/// Registered objects, by name.
#[derive(Default)]
pub(crate) struct Objects(Mutex<Vec<(String, Arc<dyn CheckpointObject>)>>);

impl Objects {
    /// Adds an object; refuses a name that is taken.
    pub fn register<T: Serialize + DeserializeOwned + Send + 'static>(
        &self,
        name: &str,
        object: &Arc<Mutex<T>>,
    ) -> bool {
        let mut objects = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_new = objects.iter().all(|(other, _)| other != name);
        if is_new {
            objects.push((name.to_owned(), Arc::new(object.clone())));
        }
        is_new
    }

    pub(super) fn names(&self) -> Vec<String> {
        let objects = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        objects.iter().map(|(name, _)| name.clone()).collect()
    }

    /// The bytes of each, in the order of registration.
    pub(super) fn encode(&self) -> Result<Vec<Vec<u8>>, String> {
        let objects = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let encode = |(name, object): &(String, Arc<dyn CheckpointObject>)| {
            object.encode().map_err(|fault| format!("the object {name:?}: {fault}"))
        };
        objects.iter().map(encode).collect()
    }

    pub(super) fn decode(&self, name: &str, bytes: &[u8]) -> Result<Commit<'static>, String> {
        let objects = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let object = objects.iter().find(|(other, _)| other == name);
        object.map_or(Ok(Box::new(|| ())), |(_, object)| object.decode(bytes))
    }
}
