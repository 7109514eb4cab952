// The logits of llama.cpp after each token of given texts, so that they can be compared with a reference.
//
//     llama_cpp_logits MODEL.gguf THREADS MAX_TOKENS
//
// Standard input holds texts as 32-bit integers in the machine's order: the number of tokens, then their ids, and so
// on to its end. Standard output gets num_tokens x vocabulary 32-bit floats for each text. Each text is decoded from
// an empty cache in one batch, with the library's defaults otherwise.

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "llama.h"

static void quiet(enum ggml_log_level level, const char *text, void *data) {
    (void)data;
    if (level == GGML_LOG_LEVEL_ERROR) fputs(text, stderr);
}

static int fail(const char *what) {
    fprintf(stderr, "llama_cpp_logits: %s\n", what);
    return 1;
}

int main(int argc, char **argv) {
    if (argc != 4) return fail("usage: llama_cpp_logits MODEL.gguf THREADS MAX_TOKENS");
    const int32_t threads = atoi(argv[2]), max_tokens = atoi(argv[3]);
    llama_log_set(quiet, NULL);
    llama_backend_init();
    struct llama_model *model = llama_model_load_from_file(argv[1], llama_model_default_params());
    if (!model) return fail("the model does not load");
    struct llama_context_params params = llama_context_default_params();
    params.n_ctx = params.n_batch = params.n_ubatch = max_tokens;
    params.n_threads = params.n_threads_batch = threads;
    struct llama_context *context = llama_init_from_model(model, params);
    if (!context) return fail("no context can be made");
    const size_t vocab_size = llama_vocab_n_tokens(llama_model_get_vocab(model));

    struct llama_batch batch = llama_batch_init(max_tokens, 0, 1);
    int32_t num_tokens;
    while (fread(&num_tokens, sizeof num_tokens, 1, stdin) == 1) {
        if (num_tokens < 1 || num_tokens > max_tokens) return fail("a text is empty or longer than MAX_TOKENS");
        if (fread(batch.token, sizeof(int32_t), num_tokens, stdin) != (size_t)num_tokens) return fail("a text is cut");
        batch.n_tokens = num_tokens;
        for (int32_t i = 0; i < num_tokens; i++) {
            batch.pos[i] = i;
            batch.n_seq_id[i] = 1;
            batch.seq_id[i][0] = 0;
            batch.logits[i] = 1;
        }
        llama_memory_clear(llama_get_memory(context), true);
        if (llama_decode(context, batch) != 0) return fail("a text cannot be decoded");
        for (int32_t i = 0; i < num_tokens; i++) {
            if (fwrite(llama_get_logits_ith(context, i), sizeof(float), vocab_size, stdout) != vocab_size)
                return fail("the logits cannot be written");
        }
        fflush(stdout);
    }
    return 0;
}
