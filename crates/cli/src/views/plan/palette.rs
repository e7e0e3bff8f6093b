//! Colours of devices and parts.

use outsize::plan::Tier;

/// The number of the ANSI colour of weights on a device.
pub fn ansi(tier: Tier) -> u8 {
    match tier {
        Tier::Gpu(number) => [32, 92][number % 2],
        Tier::Cpu => 34,
        Tier::Disk => 33,
    }
}

/// The CSS class of weights on a device; GPUs beyond the eighth reuse colours.
pub fn class(tier: Tier) -> String {
    match tier {
        Tier::Gpu(number) => format!("g{}", number % GPUS.len()),
        Tier::Cpu => "cpu".to_string(),
        Tier::Disk => "disk".to_string(),
    }
}

/// Colours of GPUs, from blue to green and back over violet, so that neighbours differ.
const GPUS: [&str; 8] =
    ["#1f9d6b", "#2f7fd1", "#7a5bd6", "#128a99", "#b0489f", "#4f9a2f", "#4662d9", "#0f8f7f"];

/// The style sheet, light or dark by `prefers-color-scheme`.
pub fn style_sheet() -> String {
    let mut css = String::from(
        "text{font-family:system-ui,-apple-system,'Segoe UI',Roboto,'Helvetica Neue',Arial,sans-serif;\
         font-size:13px;fill:#1f2328}\
         .v{font-size:13px}.h{font-size:20px;font-weight:600}.b{font-size:22px;font-weight:600}.l{font-weight:600}\
         .s{fill:#59636e;font-size:12px}.e{text-anchor:end}.m{text-anchor:middle}\
         .bg{fill:#ffffff}.line{stroke:#d1d9e0;stroke-width:1}.free{fill:#e4e9ee}\
         .cpu{fill:#d9822b}.disk{fill:#8a94a0}.ring{fill:#e5b93c}.kv{fill:#cf4a5c}.act{fill:#a78bca}.proc{fill:#6e7781}",
    );
    for (number, colour) in GPUS.iter().enumerate() {
        css.push_str(&format!(".g{number}{{fill:{colour}}}"));
    }
    css.push_str(
        ".odd{opacity:.82}\
         @media(prefers-color-scheme:dark){text{fill:#e6edf3}.s{fill:#9198a1}.bg{fill:#0d1117}\
         .line{stroke:#3d444d}.free{fill:#262d36}.disk{fill:#6c7681}.proc{fill:#848d97}}",
    );
    css
}
