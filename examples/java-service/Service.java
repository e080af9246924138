import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;
import java.io.IOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Executors;

/**
 * An HTTP service that allocates a lot: every request splits its body into words, counts them in new maps and builds a
 * response from many short strings. All objects are on the Java heap, so malloc does not affect the speed.
 * `allocwall diagnose` should show the collector's threads on their own line, and rule malloc out.
 *
 *     javac -d /tmp/service Service.java
 *     java -XX:+UseG1GC -Xmx48m -cp /tmp/service Service 8080
 */
public final class Service {
    private static final int MAX_BODY = 8 << 20;
    /** The number of maps kept between requests, so that the collector has live objects to trace. */
    private static final int KEPT_ANSWERS = 700;

    public static void main(String[] arguments) throws IOException {
        int port = arguments.length > 0 ? Integer.parseInt(arguments[0]) : 0;
        // The server writes head and body separately. Without this, Nagle and delayed acknowledgements cost 40 ms per request.
        System.setProperty("sun.net.httpserver.nodelay", "true");
        HttpServer server = HttpServer.create(new InetSocketAddress(InetAddress.getByName("127.0.0.1"), port), 64);
        Kept kept = new Kept();
        server.createContext("/", exchange -> answer(exchange, kept));
        server.setExecutor(Executors.newFixedThreadPool(4));
        server.start();
        System.out.printf("listening on 127.0.0.1:%d, pid %d%n", server.getAddress().getPort(), ProcessHandle.current().pid());
    }

    private static void answer(HttpExchange exchange, Kept kept) throws IOException {
        try (exchange) {
            byte[] body = exchange.getRequestBody().readNBytes(MAX_BODY);
            Map<String, Integer> words = new HashMap<>();
            List<String> lines = new ArrayList<>();
            for (String word : new String(body, StandardCharsets.UTF_8).split("[^A-Za-z0-9]+")) {
                int count = words.merge(word, 1, Integer::sum);
                lines.add(word + ":" + count);
            }
            kept.add(words);
            byte[] payload = String.join("\n", lines).getBytes(StandardCharsets.UTF_8);
            exchange.getResponseHeaders().set("Content-Type", "text/plain");
            exchange.sendResponseHeaders(200, payload.length == 0 ? -1 : payload.length);
            if (payload.length > 0) {
                exchange.getResponseBody().write(payload);
            }
        }
    }

    /** The maps of the last requests; the oldest one is replaced first. */
    private static final class Kept {
        private final List<Map<String, Integer>> answers = new ArrayList<>();
        private int next = 0;

        synchronized void add(Map<String, Integer> words) {
            if (answers.size() < KEPT_ANSWERS) {
                answers.add(words);
            } else {
                answers.set(next, words);
                next = (next + 1) % KEPT_ANSWERS;
            }
        }
    }

    private Service() {}
}
