// Arithmetic in typed memory that stays.
const a = new Float64Array(4096).fill(1.5);
for (let turn = 0; ; turn++) for (let i = 1; i < a.length; i++) a[i] = (a[i - 1] * 1.0001 + a[i]) % 1000;
