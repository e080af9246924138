// A JSON service on Node's http server: parse the manifest, add an edge to every segment, send it back.
//
//     node service.js 8080
//
// Objects are on V8's heap, so its scavenger appears on the garbage collector's line of the bill.
"use strict";

const http = require("node:http");

const MAX_BODY = 8 << 20;

const server = http.createServer((request, response) => {
  const chunks = [];
  let size = 0;
  request.on("data", (chunk) => {
    size += chunk.length;
    if (size > MAX_BODY) {
      response.writeHead(413, { "Content-Length": 0, Connection: "close" }).end();
      request.destroy();
      return;
    }
    chunks.push(chunk);
  });
  request.on("end", () => {
    let payload;
    try {
      const manifest = JSON.parse(Buffer.concat(chunks).toString("utf8"));
      const segments = manifest.segments.map((segment) => ({
        ...segment,
        edges: [...segment.edges, { pop: "local", latency: segment.sequence % 97 }],
      }));
      payload = Buffer.from(JSON.stringify({ ...manifest, segments }));
    } catch (error) {
      response.writeHead(400, { "Content-Length": 0 }).end();
      return;
    }
    response.writeHead(200, { "Content-Type": "application/json", "Content-Length": payload.length }).end(payload);
  });
});

server.listen(Number(process.argv[2] || 0), "127.0.0.1", () => {
  console.log(`listening on 127.0.0.1:${server.address().port}, pid ${process.pid}`);
});
for (const signal of ["SIGINT", "SIGTERM"]) process.on(signal, () => process.exit(0));
