// Plain C calls on SGLang's n-gram corpus, so that Python can drive the engine's own code. Compiled by sglang_peer.py
// together with the engine's sources, which it does not contain.
#include <cstdint>
#include <cstring>
#include <exception>
#include <string>
#include <vector>

#include "ngram.h"

using sglang::ngram::Ngram;
using sglang::ngram::Param;

static thread_local std::string last_error;

template <typename F>
static int guarded(F&& body) {
  try {
    body();
    return 0;
  } catch (const std::exception& error) {
    last_error = error.what();
    return 1;
  }
}

extern "C" {

const char* peer_error() { return last_error.c_str(); }

// numbers: capacity, depth, min breadth, max breadth, nodes, external budget, external token limit
void* peer_new(const int64_t* numbers, const char* match_type) {
  Param param{};
  param.enable = true;
  param.max_trie_depth = numbers[1];
  param.min_bfs_breadth = numbers[2];
  param.max_bfs_breadth = numbers[3];
  param.draft_token_num = numbers[4];
  param.external_sam_budget = numbers[5];
  param.external_corpus_max_tokens = numbers[6];
  param.match_type = match_type;
  void* made = nullptr;
  guarded([&] { made = new Ngram(numbers[0], param); });
  return made;
}

void peer_delete(void* peer) { delete static_cast<Ngram*>(peer); }

static std::vector<std::vector<int32_t>> split(const int32_t* tokens, const int64_t* offsets, int64_t n) {
  std::vector<std::vector<int32_t>> parts;
  parts.reserve(n);
  for (int64_t i = 0; i < n; ++i) parts.emplace_back(tokens + offsets[i], tokens + offsets[i + 1]);
  return parts;
}

int peer_put(void* peer, const int32_t* tokens, const int64_t* offsets, int64_t n) {
  return guarded([&] {
    static_cast<Ngram*>(peer)->asyncInsert(split(tokens, offsets, n));
    static_cast<Ngram*>(peer)->synchronize();
  });
}

int peer_match(void* peer, const int64_t* states, const int32_t* tokens, const int64_t* offsets, const int64_t* totals,
               int64_t n, int32_t* out_tokens, uint8_t* out_masks) {
  return guarded([&] {
    std::vector<int64_t> ids(states, states + n);
    std::vector<size_t> lens(totals, totals + n);
    auto result = static_cast<Ngram*>(peer)->batchMatch(ids, split(tokens, offsets, n), lens);
    std::memcpy(out_tokens, result.token.data(), result.token.size() * sizeof(int32_t));
    std::memcpy(out_masks, result.mask.data(), result.mask.size());
  });
}

int peer_erase(void* peer, const int64_t* states, int64_t n) {
  return guarded([&] { static_cast<Ngram*>(peer)->eraseMatchState(std::vector<int64_t>(states, states + n)); });
}

int peer_reset(void* peer) {
  return guarded([&] { static_cast<Ngram*>(peer)->reset(); });
}

int peer_add_corpus(void* peer, const char* id, const int32_t* tokens, int64_t n, int64_t chunk) {
  auto* ngram = static_cast<Ngram*>(peer);
  return guarded([&] {
    ngram->startExternalCorpusLoad();
    for (int64_t at = 0; at < n; at += chunk) {
      ngram->appendExternalCorpusTokens(std::vector<int32_t>(tokens + at, tokens + std::min(n, at + chunk)));
    }
    ngram->finishExternalCorpusLoad(id);
  });
}

int peer_remove_corpus(void* peer, const char* id) {
  return guarded([&] { static_cast<Ngram*>(peer)->removeExternalCorpus(id); });
}
}
