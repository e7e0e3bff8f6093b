//! Files as `torch.save` writes them, made by hand so that they can be wrong in one place.
#![allow(dead_code, reason = "each test program uses a part")]

/// A tensor of a state dict, with the storage that it lies in.
#[derive(Debug, Clone)]
pub struct Entry {
    pub name: String,
    /// The storage's class, such as `FloatStorage`.
    pub class: &'static str,
    pub key: String,
    /// Elements of the storage.
    pub elements: u64,
    pub offset: u64,
    pub shape: Vec<u64>,
}

impl Entry {
    /// A tensor in a storage of its own.
    pub fn new(name: &str, class: &'static str, key: &str, shape: &[u64]) -> Self {
        let (name, key) = (name.to_owned(), key.to_owned());
        let elements = shape.iter().product();
        Self { name, class, key, elements, offset: 0, shape: shape.to_vec() }
    }
}

/// Opcodes of a pickle, in the order of calls. Nothing is noted for later use.
#[derive(Debug, Clone, Default)]
pub struct Pickle(pub Vec<u8>);

impl Pickle {
    pub fn of(tensors: &[Entry]) -> Vec<u8> {
        let mut pickle = Self(b"\x80\x02}".to_vec());
        // As Python does it, a thousand at a time.
        for tensors in tensors.chunks(1000) {
            pickle.op(b"(");
            for tensor in tensors {
                pickle.text(&tensor.name).tensor(tensor);
            }
            pickle.op(b"u");
        }
        pickle.op(b".");
        pickle.0
    }

    pub fn op(&mut self, opcodes: &[u8]) -> &mut Self {
        self.0.extend_from_slice(opcodes);
        self
    }

    pub fn text(&mut self, text: &str) -> &mut Self {
        self.op(b"X").op(&(text.len() as u32).to_le_bytes()).op(text.as_bytes())
    }

    pub fn int(&mut self, number: u64) -> &mut Self {
        self.op(b"\x8a\x08").op(&number.to_le_bytes())
    }

    pub fn storage(&mut self, class: &str, key: &str, elements: u64) -> &mut Self {
        self.op(b"(").text("storage").op(format!("ctorch\n{class}\n").as_bytes());
        self.text(key).text("cpu").int(elements).op(b"tQ")
    }

    pub fn tensor(&mut self, tensor: &Entry) -> &mut Self {
        let mut strides = vec![1; tensor.shape.len()];
        for at in (1..strides.len()).rev() {
            strides[at - 1] = tensor.shape[at].wrapping_mul(strides[at]);
        }
        self.op(b"ctorch._utils\n_rebuild_tensor_v2\n(");
        self.storage(tensor.class, &tensor.key, tensor.elements).int(tensor.offset);
        for numbers in [&tensor.shape, &strides] {
            self.op(b"(");
            for number in numbers {
                self.int(*number);
            }
            self.op(b"t");
        }
        self.op(b"\x89ccollections\nOrderedDict\n)RtR")
    }
}

/// A zip archive in the manner of PyTorch: stored members, each padded to 64 bytes, and the zip64
/// records.
#[derive(Debug, Clone)]
pub struct Archive {
    pub members: Vec<Stored>,
    pub bytes: Vec<u8>,
}

/// What the directory is to say of a member.
#[derive(Debug, Clone)]
pub struct Stored {
    pub name: String,
    pub header: u64,
    pub len: u64,
    pub method: u16,
    pub flags: u16,
}

impl Archive {
    pub fn new() -> Self {
        Self { members: Vec::new(), bytes: Vec::new() }
    }

    pub fn add(&mut self, name: &str, data: &[u8]) -> &mut Self {
        let (header, len) = (self.bytes.len() as u64, data.len() as u64);
        self.bytes.extend_from_slice(b"PK\x03\x04\0\0\x08\x08\0\0");
        self.bytes.extend_from_slice(&[0; 16]);
        self.bytes.extend_from_slice(&(name.len() as u16).to_le_bytes());
        let data_start = (self.bytes.len() + 2 + name.len() + 4).next_multiple_of(64);
        let padding = data_start - self.bytes.len() - 2 - name.len();
        self.bytes.extend_from_slice(&(padding as u16).to_le_bytes());
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.extend_from_slice(b"FB");
        self.bytes.extend_from_slice(&(padding as u16 - 4).to_le_bytes());
        self.bytes.resize(data_start, b'Z');
        self.bytes.extend_from_slice(data);
        let name = name.to_owned();
        self.members.push(Stored { name, header, len, method: 0, flags: 0x0808 });
        self
    }

    /// The whole file. Numbers of 32 bits and more stand in the zip64 field.
    pub fn finish(&self) -> Vec<u8> {
        let mut bytes = self.bytes.clone();
        let start = bytes.len() as u64;
        for member in &self.members {
            let mut wide = Vec::new();
            let mut number = |number: u64| match u32::try_from(number) {
                Ok(number) if number < u32::MAX => number,
                _ => {
                    wide.extend_from_slice(&number.to_le_bytes());
                    u32::MAX
                }
            };
            let (len, header) = (number(member.len), 0);
            let stored = if len == u32::MAX { number(member.len) } else { len };
            let header = header + number(member.header);
            let extra = if wide.is_empty() { 0 } else { 4 + wide.len() as u16 };
            bytes.extend_from_slice(b"PK\x01\x02\0\0\0\0");
            for half in [member.flags, member.method, 0, 0, 0, 0] {
                bytes.extend_from_slice(&half.to_le_bytes());
            }
            bytes.extend_from_slice(&stored.to_le_bytes());
            bytes.extend_from_slice(&len.to_le_bytes());
            for half in [member.name.len() as u16, extra, 0, 0, 0, 0, 0] {
                bytes.extend_from_slice(&half.to_le_bytes());
            }
            bytes.extend_from_slice(&header.to_le_bytes());
            bytes.extend_from_slice(member.name.as_bytes());
            if extra > 0 {
                bytes.extend_from_slice(&[1, 0]);
                bytes.extend_from_slice(&(extra - 4).to_le_bytes());
                bytes.extend_from_slice(&wide);
            }
        }
        let end = bytes.len() as u64;
        let count = self.members.len() as u64;
        bytes.extend_from_slice(&end_records(start, end - start, count, end));
        bytes
    }
}

/// What ends a file whose directory of `count` members starts at `start`, with the zip64 record at
/// `record`.
pub fn end_records(start: u64, len: u64, count: u64, record: u64) -> Vec<u8> {
    let mut bytes = b"PK\x06\x06\x2c\0\0\0\0\0\0\0\x1e\x03\x2d\0\0\0\0\0\0\0\0\0".to_vec();
    for number in [count, count, len, start] {
        bytes.extend_from_slice(&number.to_le_bytes());
    }
    bytes.extend_from_slice(b"PK\x06\x07\0\0\0\0");
    bytes.extend_from_slice(&record.to_le_bytes());
    bytes.extend_from_slice(&1u32.to_le_bytes());
    bytes.extend_from_slice(b"PK\x05\x06\0\0\0\0");
    for _ in 0..2 {
        bytes.extend_from_slice(&(count.min(0xffff) as u16).to_le_bytes());
    }
    for number in [len, start] {
        bytes.extend_from_slice(&(number.min(u64::from(u32::MAX)) as u32).to_le_bytes());
    }
    bytes.extend_from_slice(&[0; 2]);
    bytes
}

/// A whole file of `torch.save`: this pickle, and storages by key.
pub fn file(pickle: &[u8], storages: &[(&str, &[u8])]) -> Vec<u8> {
    archive(pickle, storages).finish()
}

/// The same, to be changed before it is finished.
pub fn archive(pickle: &[u8], storages: &[(&str, &[u8])]) -> Archive {
    let mut archive = Archive::new();
    archive.add("archive/data.pkl", pickle);
    for (key, data) in storages {
        archive.add(&format!("archive/data/{key}"), data);
    }
    archive.add("archive/version", b"3\n");
    archive
}
