//! Which rank reads which items of a data set.
