// Keeps the objects of the last requests: V8 copies and marks them.
const kept = [];
for (let turn = 0; ; turn++) {
  const page = [];
  for (let i = 0; i < 20000; i++) page.push({ id: i, name: "n" + i, next: [turn, i] });
  kept[turn % 30] = page;
}
