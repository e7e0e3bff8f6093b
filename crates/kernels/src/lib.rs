//! Products with weights kept in bf16 or f16, as a Burn backend extension.
