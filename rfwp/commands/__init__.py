"""The commands of `rfwp`, a file each: what a user types, and what is shown. The work is done in the rooms that they import."""
