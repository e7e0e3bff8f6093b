//! A reader of pickles that can build state dicts, and nothing else.
//!
//! A pickle is a program for a stack machine
//! ([pickletools](https://github.com/python/cpython/blob/main/Lib/pickletools.py) describes each
//! opcode). Python's machine calls whatever the program names. This one knows the opcodes that
//! `torch.save` writes, of protocols 2 to 5, and the few functions of [`Global`]; it calls nothing.

use super::cursor::Cursor;
use super::fault::TorchFault;
use super::value::{Exhausted, Global, StorageRef, TensorRef, Value, Values};
use crate::dtype::Dtype;
use crate::header::MAX_RANK;
use crate::text::{quoted, shortened};

/// Values that may wait on the stack. Python's own pickles put a dict's entries there, a thousand
/// at a time.
const MAX_STACK: usize = 100_000;
/// Bytes of memory that values may take for each byte of the pickle. Real ones take about 6, and
/// up to 20 in later protocols.
const MEMORY_PER_BYTE: usize = 32;
/// Bytes of memory that values may take in any case.
const LEAST_MEMORY: usize = 64 << 10;

/// Why an opcode cannot be carried out.
enum Stop {
    /// In words that stand before the opcode's place.
    What(String),
    Fault(TorchFault),
}

impl From<&str> for Stop {
    fn from(what: &str) -> Self {
        Self::What(what.to_owned())
    }
}

impl From<Exhausted> for Stop {
    fn from(_: Exhausted) -> Self {
        "more values than a state dict of its size has".into()
    }
}

/// Reads a pickle: the value that it stands for, and the parts of all values.
pub(super) fn read(pickle: &[u8]) -> Result<(Value<'_>, Values<'_>), TorchFault> {
    let limit = pickle.len().saturating_mul(MEMORY_PER_BYTE).saturating_add(LEAST_MEMORY);
    let mut machine = Machine {
        pickle: Cursor::new(pickle),
        stack: Vec::new(),
        marks: Vec::new(),
        memo: Vec::new(),
        values: Values::new(limit),
    };
    loop {
        let at = machine.pickle.position();
        match machine.step() {
            Ok(None) => {}
            Ok(Some(value)) => return Ok((value, machine.values)),
            Err(Stop::Fault(fault)) => return Err(fault),
            Err(Stop::What(what)) => return Err(TorchFault::Pickle { what, at }),
        }
    }
}

struct Machine<'a> {
    pickle: Cursor<'a>,
    stack: Vec<Value<'a>>,
    /// Heights of the stack.
    marks: Vec<usize>,
    memo: Vec<Option<Value<'a>>>,
    values: Values<'a>,
}

impl<'a> Machine<'a> {
    /// Carries out one opcode. Gives the pickle's value at its end.
    fn step(&mut self) -> Result<Option<Value<'a>>, Stop> {
        let opcode = self.pickle.byte()?;
        match opcode {
            b'\x80' => match self.pickle.byte()? {
                2..=5 => {}
                _ => return Err("an unknown protocol".into()),
            },
            // A frame only says how much to read at once.
            b'\x95' => drop(self.pickle.bytes(8)?),
            b'.' => return Ok(Some(self.pop()?)),
            b'(' => {
                if self.marks.len() >= MAX_STACK {
                    return Err("more marks than a state dict has".into());
                }
                self.marks.push(self.stack.len());
            }
            b'N' => self.push(Value::None)?,
            b'\x88' | b'\x89' => self.push(Value::Bool)?,
            b'K' => self.int(1)?,
            b'M' => self.int(2)?,
            b'J' => {
                let number = i32::from_le_bytes(self.pickle.array()?);
                self.push(Value::Int(number.into()))?;
            }
            b'\x8a' => self.long()?,
            b'G' => self.opaque(8)?,
            b'C' => self.opaque_with_length(1)?,
            b'B' => self.opaque_with_length(4)?,
            b'\x8e' => self.opaque_with_length(8)?,
            b'\x8c' => self.text(1)?,
            b'X' => self.text(4)?,
            b'\x8d' => self.text(8)?,
            b'c' => {
                let (module, name) = (self.pickle.line()?, self.pickle.line()?);
                self.global(module, name)?;
            }
            b'\x93' => match (self.pop()?, self.pop()?) {
                (Value::Text(name), Value::Text(module)) => self.global(module, name)?,
                _ => return Err("a name that is no string".into()),
            },
            b')' => self.tuple(0)?,
            b'\x85' => self.tuple(1)?,
            b'\x86' => self.tuple(2)?,
            b'\x87' => self.tuple(3)?,
            b't' => {
                let count = self.pop_mark()?;
                self.tuple(count)?;
            }
            b']' => {
                let list = self.values.list()?;
                self.push(list)?;
            }
            b'}' => {
                let dict = self.values.dict()?;
                self.push(dict)?;
            }
            b'a' => self.append(1)?,
            b's' => self.insert(2)?,
            b'e' => {
                let count = self.pop_mark()?;
                self.append(count)?;
            }
            b'u' => {
                let count = self.pop_mark()?;
                self.insert(count)?;
            }
            b'q' => {
                let at = self.pickle.size(1)?;
                self.put(at)?;
            }
            b'r' => {
                let at = self.pickle.size(4)?;
                self.put(at)?;
            }
            b'\x94' => self.put(self.memo.len())?,
            b'h' => {
                let at = self.pickle.size(1)?;
                self.get(at)?;
            }
            b'j' => {
                let at = self.pickle.size(4)?;
                self.get(at)?;
            }
            b'Q' => self.persistent()?,
            b'R' => self.reduce()?,
            b'b' => {
                // Attributes of a dict, such as `_metadata` of a module: no tensor depends on them.
                self.pop()?;
                let Some(Value::Dict(_)) = self.top() else {
                    return Err("attributes of something that is no dict".into());
                };
            }
            opcode => return Err(Stop::What(format!("opcode {opcode:#04x}, which is unknown,"))),
        }
        Ok(None)
    }

    fn push(&mut self, value: Value<'a>) -> Result<(), Stop> {
        if self.stack.len() >= MAX_STACK {
            return Err("more values on the stack than a state dict has".into());
        }
        self.stack.push(value);
        Ok(())
    }

    /// What is on top of the stack, above the last mark.
    fn top(&self) -> Option<Value<'a>> {
        let bottom = self.marks.last().copied().unwrap_or(0);
        self.stack.get(bottom..)?.last().copied()
    }

    fn pop(&mut self) -> Result<Value<'a>, Stop> {
        let top = self.top().ok_or("an empty stack")?;
        self.stack.pop();
        Ok(top)
    }

    /// How many values there are above the last mark, which is removed.
    fn pop_mark(&mut self) -> Result<usize, Stop> {
        let mark = self.marks.pop().ok_or("no mark")?;
        Ok(self.stack.len().saturating_sub(mark))
    }

    /// The last `count` values, above the last mark.
    fn last(&self, count: usize) -> Result<&[Value<'a>], Stop> {
        let bottom = self.marks.last().copied().unwrap_or(0);
        let start = self.stack.len().checked_sub(count).filter(|start| *start >= bottom);
        Ok(start.and_then(|start| self.stack.get(start..)).ok_or("an empty stack")?)
    }

    fn drop_last(&mut self, count: usize) {
        self.stack.truncate(self.stack.len().saturating_sub(count));
    }

    fn tuple(&mut self, count: usize) -> Result<(), Stop> {
        let bottom = self.last(count)?.len();
        let start = self.stack.len() - bottom;
        let tuple = self.values.tuple(&self.stack[start..])?;
        self.drop_last(count);
        self.push(tuple)
    }

    fn append(&mut self, count: usize) -> Result<(), Stop> {
        self.last(count)?;
        self.values.take::<Value<'_>>(count)?;
        let start = self.stack.len() - count;
        let parts: Vec<_> = self.stack.drain(start..).collect();
        match self.top() {
            Some(Value::List(at)) => self.values.lists[at as usize].extend(parts),
            _ => return Err("elements of something that is no list".into()),
        }
        Ok(())
    }

    fn insert(&mut self, count: usize) -> Result<(), Stop> {
        self.last(count)?;
        if !count.is_multiple_of(2) {
            return Err("a key without a value".into());
        }
        self.values.take::<Value<'_>>(count)?;
        let start = self.stack.len() - count;
        let parts: Vec<_> = self.stack.drain(start..).collect();
        match self.top() {
            Some(Value::Dict(at)) => self.values.dicts[at as usize].extend(parts),
            _ => return Err("entries of something that is no dict".into()),
        }
        Ok(())
    }

    fn put(&mut self, at: usize) -> Result<(), Stop> {
        let value = self.top().ok_or("an empty stack")?;
        if at >= self.memo.len() {
            self.values.take::<Option<Value<'_>>>(at - self.memo.len() + 1)?;
            self.memo.resize(at + 1, None);
        }
        self.memo[at] = Some(value);
        Ok(())
    }

    fn get(&mut self, at: usize) -> Result<(), Stop> {
        let value = self.memo.get(at).copied().flatten();
        self.push(value.ok_or("a value that was never noted")?)
    }

    fn global(&mut self, module: &str, name: &str) -> Result<(), Stop> {
        let global = Global::find(module, name).ok_or_else(|| {
            let name = format!("{}.{}", shortened(module), shortened(name));
            Stop::Fault(TorchFault::Global { name: shortened(&name) })
        })?;
        self.push(Value::Global(global))
    }

    /// Replaces the tuple on the stack by the storage that it describes.
    fn persistent(&mut self) -> Result<(), Stop> {
        let id = self.pop()?;
        let [
            Value::Text("storage"),
            Value::Global(Global::Storage(dtype)),
            Value::Text(key),
            Value::Text(_),
            Value::Int(elements),
        ] = *self.values.parts(id)
        else {
            return Err("a persistent id that is no storage's".into());
        };
        let elements = u64::try_from(elements).map_err(|_| "a storage of negative length")?;
        let storage = self.values.storage(StorageRef { key, dtype, elements })?;
        let Some(storage) = storage else {
            let what = format!("storage {} with two types or lengths", quoted(key));
            return Err(Stop::What(what));
        };
        self.push(storage)
    }

    /// Does what a call of one of the known functions would do.
    fn reduce(&mut self) -> Result<(), Stop> {
        let (arguments, function) = (self.pop()?, self.pop()?);
        let (Value::Global(function), Value::Tuple(_)) = (function, arguments) else {
            return Err("a call of something that is no function".into());
        };
        let arguments = self.values.parts(arguments);
        let result = match (function, arguments) {
            (Global::OrderedDict, []) => self.values.dict()?,
            (Global::Parameter, [tensor @ Value::Tensor(_), _, _]) => *tensor,
            (Global::Tensor, [Value::Storage(storage), rest @ ..]) => {
                let dtype = self.values.storages[*storage as usize].dtype;
                let dtype = dtype.ok_or("a tensor without a type")?;
                let tensor = self.rebuild(*storage, dtype, rest)?;
                self.values.tensor(tensor)?
            }
            (
                Global::TypedTensor,
                [
                    Value::Storage(storage),
                    o,
                    s,
                    t,
                    g,
                    h,
                    Value::Global(Global::Dtype(dtype)),
                    m @ ..,
                ],
            ) => {
                let rest = [&[*o, *s, *t, *g, *h], m].concat();
                let tensor = self.rebuild(*storage, *dtype, &rest)?;
                self.values.tensor(tensor)?
            }
            _ => return Err("a call with other arguments than torch.save writes".into()),
        };
        self.push(result)
    }

    /// A tensor of the arguments after its storage: offset, size, stride, whether it has a
    /// gradient, hooks, and in some files marks that change its values.
    fn rebuild(&self, storage: u32, dtype: Dtype, rest: &[Value<'a>]) -> Result<TensorRef, Stop> {
        let &[
            Value::Int(offset),
            size @ Value::Tuple(_),
            stride @ Value::Tuple(_),
            _,
            _,
            ref marks @ ..,
        ] = rest
        else {
            return Err("a tensor with other arguments than torch.save writes".into());
        };
        let plain = match marks {
            [] | [Value::None] => true,
            [marks @ Value::Dict(_)] => self.values.parts(*marks).is_empty(),
            _ => false,
        };
        if !plain {
            return Err("a tensor that is a conjugate or negative view".into());
        }
        let numbers = |tuple| -> Result<Box<[i64]>, Stop> {
            let parts = self.values.parts(tuple);
            if parts.len() > MAX_RANK {
                return Err(Stop::What(format!("a tensor of more than {MAX_RANK} dimensions")));
            }
            let number = |part: &Value<'_>| match *part {
                Value::Int(number) => Ok(number),
                _ => Err("a size or stride that is no number".into()),
            };
            parts.iter().map(number).collect()
        };
        Ok(TensorRef { storage, dtype, offset, size: numbers(size)?, stride: numbers(stride)? })
    }

    fn int(&mut self, bytes: usize) -> Result<(), Stop> {
        let number = self.pickle.size(bytes)?;
        self.push(Value::Int(number as i64))
    }

    fn long(&mut self) -> Result<(), Stop> {
        let len = self.pickle.size(1)?;
        let bytes = self.pickle.bytes(len)?;
        let number = match bytes.len() {
            0..=8 => {
                let negative = bytes.last().is_some_and(|last| *last >= 0x80);
                let mut wide = [if negative { 0xff } else { 0 }; 8];
                wide[..len].copy_from_slice(bytes);
                Value::Int(i64::from_le_bytes(wide))
            }
            _ => Value::Scalar,
        };
        self.push(number)
    }

    fn opaque(&mut self, len: usize) -> Result<(), Stop> {
        self.pickle.bytes(len)?;
        self.push(Value::Scalar)
    }

    fn opaque_with_length(&mut self, bytes: usize) -> Result<(), Stop> {
        let len = self.pickle.size(bytes)?;
        self.opaque(len)
    }

    fn text(&mut self, bytes: usize) -> Result<(), Stop> {
        let text = self.pickle.text(bytes)?;
        self.push(Value::Text(text))
    }
}
