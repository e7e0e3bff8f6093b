//! What trackers write, byte by byte where no Python is at hand.

use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex};

use outsize_train::tracking::{
    Csv, JsonLines, MetricRecord, MetricValue, TensorBoard, Tracker, TrainingProgress,
};
use outsize_train::{Accelerator, Error, threads};
use serde_json::Value;

fn accelerator() -> Accelerator {
    Accelerator::builder().build().unwrap()
}

#[test]
fn lines_go_on_after_a_kill() {
    let place = tempfile::tempdir().unwrap();
    let (json, csv) = (place.path().join("logs/run.jsonl"), place.path().join("logs/run.csv"));
    for start in 0..2 {
        let accelerator = accelerator();
        let trackers: Vec<Box<dyn Tracker>> =
            vec![Box::new(JsonLines::new(&json)), Box::new(Csv::new(&csv))];
        accelerator.init_trackers("run", &[("lr", 0.1)], trackers).unwrap();
        for step in start * 2..start * 2 + 2 {
            accelerator.log(step, [("loss", 0.5 / (step + 1) as f64)]).unwrap();
        }
        let values = [("note, \"a\"", MetricValue::from("x\ny")), ("norm", f64::NAN.into())];
        accelerator.log(9, values).unwrap();
        accelerator.end_training().unwrap();
        accelerator.log(10, [("late", 1.0)]).unwrap();
        if start == 0 {
            // A kill amid a line.
            for path in [&json, &csv] {
                let mut text = fs::read(path).unwrap();
                text.extend(b"{\"lo");
                fs::write(path, text).unwrap();
            }
        }
    }
    let json = fs::read_to_string(json).unwrap();
    let lines: Vec<Value> = json.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 8);
    assert_eq!((&lines[0]["project"], &lines[0]["config"][0][1]), (&"run".into(), &0.1.into()));
    assert_eq!((&lines[2]["step"], &lines[2]["loss"]), (&1.into(), &0.25.into()));
    assert_eq!((&lines[3]["norm"], &lines[3]["note, \"a\""]), (&"NaN".into(), &"x\ny".into()));
    assert_eq!(lines[6]["step"], 3);
    assert!(lines[6]["time"].as_f64().unwrap() > 1.7e9);

    let csv = fs::read_to_string(csv).unwrap();
    let rows: Vec<&str> = csv.lines().collect();
    assert_eq!((rows.len(), rows[0]), (9, "step,time,name,value"));
    assert!(rows[2].starts_with("1,") && rows[2].ends_with(",loss,0.25"), "{}", rows[2]);
    assert!(rows[3].ends_with(",\"note, \"\"a\"\"\",x y") && rows[4].ends_with(",norm,NaN"));
}

/// The data of all records of an event file, after the checks of a reader.
fn records(path: &Path) -> Vec<Vec<u8>> {
    let bytes = fs::read(path).unwrap();
    let mut rest = &bytes[..];
    let mut records = Vec::new();
    let check = |data: &[u8], sum: &[u8]| {
        let crc = crc32c::crc32c(data);
        let masked = crc.rotate_right(15).wrapping_add(0xa282_ead8);
        assert_eq!(sum, masked.to_le_bytes());
    };
    while !rest.is_empty() {
        let (head, after) = rest.split_at(12);
        check(&head[..8], &head[8..]);
        let length = u64::from_le_bytes(head[..8].try_into().unwrap()) as usize;
        check(&after[..length], &after[length..length + 4]);
        records.push(after[..length].to_vec());
        rest = &after[length + 4..];
    }
    records
}

#[test]
fn event_files_are_framed_as_tensor_board_reads_them() {
    let place = tempfile::tempdir().unwrap();
    let accelerator = accelerator();
    let tracker = Box::new(TensorBoard::new(place.path()));
    accelerator.init_trackers("run", &"config", vec![tracker]).unwrap();
    accelerator.log(300, [("loss", 0.5)]).unwrap();
    accelerator.log(301, [("loss", MetricValue::from(0.25)), ("say", "hello".into())]).unwrap();
    let folder = place.path().join("run");
    let files: Vec<_> = folder.read_dir().unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(files.len(), 1);
    let name = files[0].file_name().unwrap().to_str().unwrap();
    assert!(name.starts_with("events.out.tfevents.1"), "{name}");

    let records = records(&files[0]);
    assert_eq!(records.len(), 4);
    // Double 1 is the time, varint 2 the step (300 is ac 02), which a first event leaves at 0.
    assert_eq!((records[0][0], &records[0][9..]), (9, &b"\x10\x00\x1a\x0dbrain.Event:2"[..]));
    assert_eq!(&records[1][9..], b"\x10\xac\x02\x3a\x02\x08\x01");
    let loss = b"\x0a\x0b\x0a\x04loss\x15\x00\x00\x00\x3f";
    assert!(records[2].ends_with(loss), "{:?}", records[2]);
    let text = b"\x0a\x2d\x0a\x10say/text_summary\x42\x0f\x08\x07\x12\x04\x12\x02\x08\x01\x42\x05hello\x4a\x08\x0a\x06\x0a\x04text";
    assert!(records[3].windows(text.len()).any(|window| window == text), "{:?}", records[3]);
}

#[test]
fn a_folder_that_cannot_be_written_is_one_error() {
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("file");
    fs::write(&file, "").unwrap();
    let trackers: [Box<dyn Tracker>; 3] = [
        Box::new(JsonLines::new(file.join("run.jsonl"))),
        Box::new(Csv::new(file.join("run.csv"))),
        Box::new(TensorBoard::new(&file)),
    ];
    for tracker in trackers {
        let fault = accelerator().init_trackers("run", &(), vec![tracker]).unwrap_err();
        let message = fault.to_string();
        assert!(message.starts_with("cannot write ") && message.contains("/file/"), "{message}");
    }
}

/// One's own tracker.
struct Kept(Arc<Mutex<Vec<String>>>);

impl Tracker for Kept {
    fn start(&mut self, project: &str, config: &Value) -> Result<(), Error> {
        self.0.lock().unwrap().push(format!("{project} {config}"));
        Ok(())
    }

    fn log(&mut self, record: &MetricRecord<'_>) -> Result<(), Error> {
        self.0.lock().unwrap().push(format!("{} {:?}", record.step, record.number("loss")));
        Ok(())
    }

    fn finish(&mut self) -> Result<(), Error> {
        self.0.lock().unwrap().push("end".to_owned());
        Ok(())
    }
}

#[test]
fn the_main_rank_alone_logs_in_order() {
    let kept = Arc::default();
    let place = tempfile::tempdir().unwrap();
    threads(3, |accelerator| {
        let trackers: Vec<Box<dyn Tracker>> = vec![
            Box::new(Kept(Arc::clone(&kept))),
            Box::new(TrainingProgress::new(3)),
            Box::new(JsonLines::new(place.path().join(accelerator.process_index().to_string()))),
        ];
        accelerator.init_trackers("run", &1, trackers).unwrap();
        for step in 0..3 {
            let rank = accelerator.process_index() as f64;
            accelerator.log(step, [("loss", rank), ("tokens", 10.0)]).unwrap();
        }
        accelerator.end_training().unwrap();
    })
    .unwrap();
    let expected = ["run 1", "0 Some(0.0)", "1 Some(0.0)", "2 Some(0.0)", "end"];
    assert_eq!(*kept.lock().unwrap(), expected);
    assert_eq!(place.path().read_dir().unwrap().count(), 1);
}
