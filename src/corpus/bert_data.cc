#include "corpus/bert_data.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/rng.h"
#include "base/threads.h"
#include "io/tfrecord.h"

namespace octet {
namespace {

constexpr int64_t kSpecials = 3;  // [CLS], [SEP], [SEP]
constexpr std::array<const char*, 3> kSplits = {"train", "val", "test"};

bool is_space(char c) { return c == ' ' || c == '\t' || c == '\r'; }

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  return text;
}

// Behind the sentence that begins at `begin`: the position of the space, or the end.
size_t sentence_end(std::string_view line, size_t begin) {
  for (size_t i = begin; i < line.size(); ++i) {
    if (line[i] != '.' && line[i] != '!' && line[i] != '?') continue;
    size_t end = i + 1;
    while (end < line.size() && std::string_view("\"')]").find(line[end]) != std::string_view::npos) ++end;
    if (end + 1 < line.size() && line[end] == ' ' && !(line[end + 1] >= 'a' && line[end + 1] <= 'z')) return end;
  }
  return line.size();
}

// Cuts tokens from the front or the back of the longer part until both fit, each time by a coin.
void cut_pair(std::vector<int32_t>& first, std::vector<int32_t>& second, int64_t most, Philox& random) {
  size_t front[2] = {};
  std::vector<int32_t>* parts[2] = {&first, &second};
  const auto length = [&](int i) { return parts[i]->size() - front[i]; };
  while (static_cast<int64_t>(length(0) + length(1)) > most) {
    const int longer = length(0) > length(1) ? 0 : 1;
    if (random.below(2) == 0)
      ++front[longer];
    else
      parts[longer]->pop_back();
  }
  for (int i = 0; i < 2; ++i) parts[i]->erase(parts[i]->begin(), parts[i]->begin() + static_cast<ptrdiff_t>(front[i]));
}

BertSequence joined(const std::vector<int32_t>& first, const std::vector<int32_t>& second, const BertTokens& tokens) {
  BertSequence e;
  e.ids.reserve(first.size() + second.size() + kSpecials);
  e.ids.push_back(tokens.cls);
  e.ids.insert(e.ids.end(), first.begin(), first.end());
  e.ids.push_back(tokens.sep);
  e.types.assign(e.ids.size(), 0);
  e.ids.insert(e.ids.end(), second.begin(), second.end());
  e.ids.push_back(tokens.sep);
  e.types.resize(e.ids.size(), 1);
  return e;
}

bool is_tfrecord(const std::string& path) {
  const std::string name = path.substr(path.rfind('/') + 1);
  return name.find(".tfrecord") != std::string::npos;
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// The split of each of `count` documents, spread evenly: always the one that lacks most.
std::vector<size_t> deal(int64_t count, const std::vector<double>& fractions) {
  std::vector<size_t> split;
  std::vector<double> given(fractions.size());
  for (int64_t d = 0; d < count; ++d) {
    size_t most = 0;
    for (size_t s = 1; s < fractions.size(); ++s)
      if (fractions[s] * static_cast<double>(d + 1) - given[s] >
          fractions[most] * static_cast<double>(d + 1) - given[most])
        most = s;
    given[most] += 1;
    split.push_back(most);
  }
  return split;
}

std::vector<BertDocuments> read_documents(const Tokenizer& tokenizer, const BertDataOptions& options, int threads,
                                          BertDataResult& result) {
  BertDocuments all;
  CorpusReader reader(list_corpus(options.inputs, options.tokenizer_path), options.text);
  CorpusProgress state{.total_disk_bytes = reader.total_disk_bytes()};
  run_over_corpus(reader, threads, [&](int, const CorpusBatch& batch) -> std::function<void()> {
    struct Part {
      BertDocuments tokens;
      std::vector<std::pair<int64_t, bool>> ends;  // sentences so far, and whether a document ends there
      TextCounts counts;
    };
    auto part = std::make_shared<Part>();
    EncodeOptions encode;
    UnknownText unknown;
    encode.unknown = &unknown;
    const auto end = [&] { part->ends.emplace_back(std::ssize(part->tokens.sentences) - 1, true); };
    each_text(batch, reader.files(), options.text, part->counts, [&](const TextPiece& piece) {
      if (piece.begins_document) end();
      for (const std::string_view sentence : split_sentences(piece.text)) {
        if (sentence.empty() && options.parted_by_blank_lines) end();
        tokenizer.encode_to(sentence, encode, part->tokens.ids);
        part->tokens.end_sentence();
      }
      if (piece.ends_document) end();
    });
    return [&, part, disk = batch.disk_bytes] {
      size_t next = 0;
      for (int64_t s = 0; s < std::ssize(part->tokens.sentences); ++s) {
        for (; next < part->ends.size() && part->ends[next].first == s; ++next) all.end_document();
        if (s + 1 == std::ssize(part->tokens.sentences)) break;
        all.ids.insert(all.ids.end(), part->tokens.ids.begin() + part->tokens.sentences[static_cast<size_t>(s)],
                       part->tokens.ids.begin() + part->tokens.sentences[static_cast<size_t>(s) + 1]);
        all.end_sentence();
      }
      result.text.add(part->counts);
      state.disk_bytes = disk, state.text_bytes = result.text.bytes, state.documents = all.size();
      state.tokens = std::ssize(all.ids);
      if (options.progress) options.progress(state);
    };
  });
  all.end_document();
  result.sentences = std::ssize(all.sentences) - 1;
  if (options.split.empty()) {
    std::vector<BertDocuments> one;
    one.push_back(std::move(all));
    return one;
  }
  std::vector<BertDocuments> splits(options.split.size());
  const std::vector<size_t> dealt = deal(all.size(), options.split);
  for (int64_t d = 0; d < all.size(); ++d) {
    BertDocuments& to = splits[dealt[static_cast<size_t>(d)]];
    for (int64_t s = all.documents[static_cast<size_t>(d)]; s < all.documents[static_cast<size_t>(d) + 1]; ++s) {
      to.ids.insert(to.ids.end(), all.ids.begin() + all.sentences[static_cast<size_t>(s)],
                    all.ids.begin() + all.sentences[static_cast<size_t>(s) + 1]);
      to.end_sentence();
    }
    to.end_document();
  }
  return splits;
}

// The examples of all documents and their duplicates, in order.
BertExamples make_examples(const BertDocuments& documents, const BertDataOptions& options, const BertMasking& masking) {
  constexpr int64_t kTogether = 4096;  // documents whose examples are made before they are joined
  BertExamples set;
  const int64_t count = documents.size() * options.duplicates;
  for (int64_t begin = 0; begin < count; begin += kTogether) {
    std::vector<std::vector<BertSequence>> made(static_cast<size_t>(std::min(kTogether, count - begin)));
    parallel_for(std::ssize(made), 1, [&](int64_t from, int64_t to) {
      for (int64_t i = from; i < to; ++i)
        made[static_cast<size_t>(i)] = document_examples(documents, (begin + i) % documents.size(),
                                                         (begin + i) / documents.size(), options, masking);
    });
    for (const auto& examples : made)
      for (const BertSequence& example : examples) set.add(example);
  }
  return set;
}

// The examples in the order of rows that hold several, the rows in random order; the number of rows.
int64_t write_rows(const std::string& prefix, const BertSetInfo& info, const BertExamples& set,
                   const BertDataOptions& options) {
  std::vector<std::vector<int64_t>> rows = pack_lengths(set.lengths(), options.row, options.most_in_row);
  Philox random(options.seed, ~uint64_t{0});
  for (size_t i = rows.size(); i > 1; --i) std::swap(rows[i - 1], rows[random.below(i)]);
  BertSetWriter writer(prefix, info);
  for (const auto& row : rows)
    for (const int64_t index : row) writer.add(set.example(index));
  writer.commit();
  return std::ssize(rows);
}

void check_options(const BertDataOptions& o) {
  check(o.length > kSpecials + 1 && o.length <= 1 << 16, ErrorCode::kInvalidArgument,
        "examples of {} tokens (want 5..65536: [CLS], two [SEP] and a token of each part)", o.length);
  check(o.row >= o.length, ErrorCode::kInvalidArgument, "rows of {} tokens are shorter than examples of {}", o.row,
        o.length);
  check(o.masked_share > 0 && o.masked_share <= 1 && o.most_masked > 0, ErrorCode::kInvalidArgument,
        "a share of {} masked tokens, at most {} (want a share above 0 and at most 1, and 1 token or more)",
        o.masked_share, o.most_masked);
  check(o.duplicates > 0, ErrorCode::kInvalidArgument, "{} duplicates (want 1 or more: 1 is none)", o.duplicates);
  check(!o.output.empty(), ErrorCode::kInvalidArgument, "name the files to be written: --out PREFIX");
  const double sum = std::accumulate(o.split.begin(), o.split.end(), 0.0);
  check(o.split.empty() || (o.split.size() <= kSplits.size() && std::abs(sum - 1) < 1e-6 &&
                            std::ranges::all_of(o.split, [](double f) { return f > 0; })),
        ErrorCode::kInvalidArgument, "--split: {} fractions of sum {} (want two or three above 0 whose sum is 1)",
        o.split.size(), sum);
}

}  // namespace

void BertDocuments::end_sentence() {
  if (std::ssize(ids) > sentences.back()) sentences.push_back(std::ssize(ids));
}

void BertDocuments::end_document() {
  const int64_t end = std::ssize(sentences) - 1;
  if (end > documents.back()) documents.push_back(end);
}

std::vector<std::string_view> split_sentences(std::string_view text) {
  std::vector<std::string_view> sentences;
  while (!text.empty()) {
    const size_t newline = text.find('\n');
    const std::string_view line = trimmed(text.substr(0, newline));
    text = newline == std::string_view::npos ? std::string_view() : text.substr(newline + 1);
    if (line.empty()) sentences.emplace_back();
    for (size_t begin = 0; begin < line.size();) {
      const size_t end = sentence_end(line, begin);
      sentences.push_back(trimmed(line.substr(begin, end - begin)));
      begin = std::min(end + 1, line.size());
    }
  }
  return sentences;
}

std::vector<BertSequence> document_examples(const BertDocuments& documents, int64_t document, int64_t copy,
                                            const BertDataOptions& options, const BertMasking& masking) {
  const int64_t count = documents.size(), most = options.length - kSpecials;
  const auto index = static_cast<uint64_t>(copy * count + document);
  Philox random(options.seed, 2 * index);
  const auto target = [&] {
    return random.uniform() < options.short_share
               ? 2 + static_cast<int64_t>(random.below(static_cast<uint64_t>(most - 1)))
               : most;
  };
  const auto add = [&](int64_t sentence, std::vector<int32_t>& to) {
    to.insert(to.end(), documents.ids.begin() + documents.sentences[static_cast<size_t>(sentence)],
              documents.ids.begin() + documents.sentences[static_cast<size_t>(sentence) + 1]);
  };
  const auto between = [&](int64_t from, int64_t to) {  // of sentences
    return documents.sentences[static_cast<size_t>(to)] - documents.sentences[static_cast<size_t>(from)];
  };
  std::vector<BertSequence> examples;
  const int64_t end = documents.documents[static_cast<size_t>(document) + 1];
  int64_t wanted = target();
  for (int64_t begin = documents.documents[static_cast<size_t>(document)]; begin < end;) {
    int64_t stop = begin + 1;
    while (stop < end && between(begin, stop) < wanted) ++stop;
    const int64_t cut = stop - begin < 2
                            ? stop
                            : begin + 1 + static_cast<int64_t>(random.below(static_cast<uint64_t>(stop - begin - 1)));
    std::vector<int32_t> first, second;
    for (int64_t s = begin; s < cut; ++s) add(s, first);
    const bool other = cut == stop || random.below(2) == 0;
    if (other) {
      auto from = static_cast<size_t>(random.below(static_cast<uint64_t>(count - 1)));
      if (from >= static_cast<size_t>(document)) ++from;
      const int64_t start = documents.documents[from], sentences = documents.documents[from + 1] - start;
      int64_t s = start + static_cast<int64_t>(random.below(static_cast<uint64_t>(sentences)));
      do add(s++, second);
      while (s < start + sentences && std::ssize(second) < wanted - std::ssize(first));
      begin = cut;  // the sentences that were not used come again
    } else {
      for (int64_t s = cut; s < stop; ++s) add(s, second);
      begin = stop;
    }
    cut_pair(first, second, most, random);
    BertSequence& example = examples.emplace_back(joined(first, second, masking.tokens));
    example.is_next = !other;
    mask_example(example, masking, mix64(options.seed + 1) ^ mix64(2 * index + 1), examples.size());
    wanted = target();
  }
  return examples;
}

BertDataResult prepare_bert_data(const Tokenizer& tokenizer, const BertDataOptions& options) {
  check_options(options);
  BertDataResult result;
  const BertMasking masking{.tokens = bert_tokens(tokenizer),
                            .vocab_size = tokenizer.vocab_size(),
                            .share = options.masked_share,
                            .most = options.most_masked};
  set_thread_count(options.threads);
  result.threads = thread_count();
  const auto tfrecords = std::ranges::count_if(options.inputs, is_tfrecord);
  check(tfrecords == 0 || tfrecords == std::ssize(options.inputs), ErrorCode::kInvalidArgument,
        "{} of {} inputs are TFRecords: prepare them and the texts apart", tfrecords, options.inputs.size());
  check(tfrecords == 0 || options.split.empty(), ErrorCode::kInvalidArgument,
        "--split deals documents: TFRecords hold examples; name the files of each split in a command of its own");
  std::vector<BertExamples> sets;
  std::vector<int64_t> counts;
  auto start = std::chrono::steady_clock::now();
  if (tfrecords > 0) {
    BertExamples& set = sets.emplace_back();
    for (const std::string& path : options.inputs)
      each_bert_record(path, masking.vocab_size, [&](const BertSequence& example) {
        check(std::ssize(example.ids) <= options.length, ErrorCode::kInvalidArgument,
              "{}: an example of {} tokens, more than {}: set --length", path, example.ids.size(), options.length);
        set.add(example);
      });
    counts.push_back(0);
    result.example_seconds = seconds_since(start);
  } else {
    const std::vector<BertDocuments> splits = read_documents(tokenizer, options, result.threads, result);
    result.tokenize_seconds = seconds_since(start);
    start = std::chrono::steady_clock::now();
    for (const BertDocuments& documents : splits) {
      check(documents.size() >= 2, ErrorCode::kInvalidArgument,
            "{} document(s) with text{}: half of the pairs take their second part from another document; text files "
            "are one document each (--blank-lines parts them), JSON lines one a line",
            documents.size(), splits.size() > 1 ? " in a split" : "");
      counts.push_back(documents.size());
      sets.push_back(make_examples(documents, options, masking));
    }
    result.example_seconds = seconds_since(start);
  }
  start = std::chrono::steady_clock::now();
  const BertSetInfo info{.vocab_size = masking.vocab_size, .tokenizer_path = options.output + "_tokenizer"};
  for (size_t i = 0; i < sets.size(); ++i) {
    check(sets[i].size() > 0, ErrorCode::kInvalidArgument, "there is no example");
    BertSplit& split = result.splits.emplace_back();
    split.name = sets.size() > 1 ? kSplits[i] : "";
    split.prefix = sets.size() > 1 ? fmt::format("{}_{}", options.output, split.name) : options.output;
    make_folders(parent_folder(split.prefix));
    split.rows = write_rows(split.prefix, info, sets[i], options);
    split.documents = counts[i], split.examples = sets[i].size(), split.tokens = std::ssize(sets[i].ids);
    split.masked = std::ssize(sets[i].masked_labels);
    split.random_next = std::count(sets[i].is_next.begin(), sets[i].is_next.end(), false);
    split.filled = static_cast<double>(split.tokens) / static_cast<double>(split.rows * options.row);
  }
  tokenizer.save(options.output + "_tokenizer");
  result.pack_seconds = seconds_since(start);
  return result;
}

}  // namespace octet
