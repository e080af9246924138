# Entries of a hash, made and deleted. Perl keeps most freed values in lists of its own.
my %seen;
for (my $turn = 0; ; $turn++) {
    my $key = ($turn * 7919) % 50021;
    if ($turn % 2) { $seen{"key$key"} = ["a" x 60, "b" x 90, $turn]; }
    else { delete $seen{"key" . (($key * 31) % 50021)}; }
}
