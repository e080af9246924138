// Rewrites manifests. A request parses the whole manifest of a stream, adds an edge to each of its segments, and answers with the newest
// ones. The parsed manifest is kept until the next request for this stream replaces it, mostly in another thread.
//
// Each value, key and text of a manifest is a block of malloc. --arena: a manifest has one block for all, and the block is used again.
#include "../http.h"
#include <stdatomic.h>

enum { STREAMS = 16, SEGMENTS = 32, NEWEST = 4, EDGES = 6, TAGS = 12, ARENA = 512 * 1024 };

struct value {
    char type; // '{', '[', '"', or '0' for a number
    char *key, *text;
    struct value *first, *next;
};

struct manifest {
    struct value *root;
    char *arena; // NULL: of blocks
    size_t used; // of the arena
    struct manifest *next;
};

static struct {
    pthread_mutex_t lock;
    char *text;
    struct manifest *newest;
} streams[STREAMS];

// Manifests that were replaced, to be filled again.
static pthread_mutex_t spares_lock = PTHREAD_MUTEX_INITIALIZER;
static struct manifest *spares;

static long arenas;

static void *take(struct manifest *of, size_t bytes) {
    void *at;
    if (of->arena) {
        at = of->arena + of->used;
        of->used += (bytes + 15) & ~(size_t)15;
        if (of->used > ARENA)
            at = NULL;
    } else {
        at = malloc(bytes);
    }
    if (!at)
        fail("no memory for a manifest");
    return at;
}

static char *copy(struct manifest *of, const char *from, size_t length) {
    char *text = take(of, length + 1);
    memcpy(text, from, length);
    text[length] = 0;
    return text;
}

static struct value *make(struct manifest *of, char type) {
    struct value *value = take(of, sizeof *value);
    *value = (struct value){.type = type};
    return value;
}

// The text up to the next quote. `at` moves behind it.
static char *quoted(struct manifest *of, const char **at) {
    const char *from = *at, *end = strchr(from, '"');
    *at = end + 1;
    return copy(of, from, (size_t)(end - from));
}

// The manifests are made below: they have no spaces, no escapes and no empty lists.
static struct value *parse(struct manifest *of, const char **at) {
    char first = **at;
    struct value *value = make(of, strchr("{[\"", first) ? first : '0');
    if (value->type == '"') {
        ++*at;
        value->text = quoted(of, at);
    } else if (value->type == '0') {
        size_t length = strspn(*at, "0123456789.");
        value->text = copy(of, *at, length);
        *at += length;
    } else {
        struct value **link = &value->first;
        do {
            // Behind the bracket or the comma.
            ++*at;
            char *key = NULL;
            if (value->type == '{') {
                ++*at;
                key = quoted(of, at);
                ++*at;
            }
            *link = parse(of, at);
            (*link)->key = key;
            link = &(*link)->next;
        } while (**at == ',');
        ++*at;
    }
    return value;
}

static void release(struct value *value) {
    while (value) {
        struct value *next = value->next;
        release(value->first);
        free(value->key);
        free(value->text);
        free(value);
        value = next;
    }
}

static struct value *get(const struct value *object, const char *key) {
    struct value *value = object->first;
    while (strcmp(value->key, key) != 0)
        value = value->next;
    return value;
}

static struct value *member(struct manifest *of, char type, const char *key, const char *text) {
    struct value *value = make(of, type);
    value->key = copy(of, key, strlen(key));
    value->text = copy(of, text, strlen(text));
    return value;
}

static void add_edge(struct manifest *of, const struct value *segment) {
    struct value **link = &get(segment, "edges")->first;
    while (*link)
        link = &(*link)->next;
    *link = make(of, '{');
    (*link)->first = member(of, '"', "pop", "pop-99");
    (*link)->first->next = member(of, '0', "latency", "17");
}

static char *print(char *to, const struct value *value) {
    if (value->key)
        to = stpcpy(stpcpy(stpcpy(to, "\""), value->key), "\":");
    if (value->type == '0')
        return stpcpy(to, value->text);
    if (value->type == '"')
        return stpcpy(stpcpy(stpcpy(to, "\""), value->text), "\"");
    *to++ = value->type;
    for (const struct value *one = value->first; one; one = one->next) {
        to = print(to, one);
        if (one->next)
            *to++ = ',';
    }
    *to++ = value->type == '{' ? '}' : ']';
    return to;
}

static struct manifest *spare(void) {
    pthread_mutex_lock(&spares_lock);
    struct manifest *manifest = spares;
    if (manifest)
        spares = manifest->next;
    pthread_mutex_unlock(&spares_lock);
    if (!manifest) {
        manifest = calloc(1, sizeof *manifest);
        if (!manifest || (arenas && !(manifest->arena = malloc(ARENA))))
            fail("no memory for a manifest");
    }
    manifest->used = 0;
    return manifest;
}

static void give_back(struct manifest *manifest) {
    if (!manifest->arena)
        release(manifest->root);
    pthread_mutex_lock(&spares_lock);
    manifest->next = spares;
    spares = manifest;
    pthread_mutex_unlock(&spares_lock);
}

static size_t answer(char *body) {
    static atomic_uint requests;
    unsigned stream = atomic_fetch_add(&requests, 1) % STREAMS;
    struct manifest *manifest = spare();
    const char *at = streams[stream].text;
    manifest->root = parse(manifest, &at);
    char *end = body;
    int nth = 0;
    for (struct value *one = get(manifest->root, "segments")->first; one; one = one->next) {
        add_edge(manifest, one);
        if (nth++ >= SEGMENTS - NEWEST) {
            end = print(end, one);
            *end++ = '\n';
        }
    }
    pthread_mutex_lock(&streams[stream].lock);
    struct manifest *old = streams[stream].newest;
    streams[stream].newest = manifest;
    pthread_mutex_unlock(&streams[stream].lock);
    if (old)
        give_back(old);
    return (size_t)(end - body);
}

// Segments of about 2 KB.
static char *text_of(int stream) {
    char *text = NULL;
    size_t length;
    FILE *out = open_memstream(&text, &length);
    if (!out)
        fail("no memory for a manifest");
    fputs("{\"version\":7,\"segments\":[", out);
    for (int n = 0; n < SEGMENTS; n++) {
        fprintf(out, "%s{\"stream_id\":\"stream-%06d\",\"sequence\":%d,\"duration\":6.006,", n ? "," : "", stream, n);
        fprintf(out, "\"bitrate\":%d,\"codec\":\"avc1.640028,mp4a.40.2\",", 4500000 + n);
        fprintf(out, "\"uri\":\"https://origin.invalid/live/%012d.m4s?token=%0640d\",", n, 7);
        fputs("\"drm\":{\"scheme\":\"cenc\",\"key_id\":\"0000\",\"licence\":{\"url\":\"https://licence.invalid\",\"ttl\":3600}},", out);
        for (int edge = 0; edge < EDGES; edge++)
            fprintf(out, "%s{\"pop\":\"pop-%02d\",\"latency\":%d}", edge ? "," : "\"edges\":[", edge, 11 + edge);
        for (int tag = 0; tag < TAGS; tag++)
            fprintf(out, "%s\"tag-%02d-%048d\"", tag ? "," : "],\"tags\":[", tag, tag);
        fputs("]}", out);
    }
    fputs("]}", out);
    if (fclose(out))
        fail("no memory for a manifest");
    return text;
}

int main(int argc, char **argv) {
    long port = 0;
    const struct setting known[] = {{"--port", &port, 1}, {"--arena", &arenas, 0}, {NULL, NULL, 0}};
    read_settings(argc, argv, known);
    for (int stream = 0; stream < STREAMS; stream++) {
        pthread_mutex_init(&streams[stream].lock, NULL);
        streams[stream].text = text_of(stream);
    }
    return serve(port);
}
