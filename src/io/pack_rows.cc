// pack_rows and pair_rows (dataset.h).
#include <algorithm>
#include <numeric>
#include <set>

#include "base/error.h"
#include "io/dataset.h"

namespace octet {

int64_t pack_rows(const std::string& from, const std::string& to, int64_t row_length) {
  const auto set = TokenDataset::open(from);
  const int64_t documents = set->documents();
  std::vector<int64_t> order(static_cast<size_t>(documents)), next(order.size(), -1), first, last;
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, std::greater{}, [&](int64_t document) { return set->document_length(document); });
  std::vector<std::vector<int64_t>> with_room(static_cast<size_t>(row_length) + 1);  // rows, by the tokens left in them
  std::set<int64_t> rooms;                                                           // of which there are some
  for (const int64_t document : order) {
    const int64_t length = set->document_length(document);
    check(length <= row_length, ErrorCode::kInternal, "{}: document {} has {} tokens (want at most {})", from, document,
          length, row_length);
    const auto best = rooms.lower_bound(length);
    const int64_t room = best == rooms.end() ? row_length : *best;
    int64_t row = std::ssize(first);
    if (best == rooms.end()) {
      first.push_back(document), last.push_back(document);
    } else {
      auto& rows = with_room[static_cast<size_t>(room)];
      row = rows.back();
      rows.pop_back();
      if (rows.empty()) rooms.erase(best);
      next[static_cast<size_t>(std::exchange(last[static_cast<size_t>(row)], document))] = document;
    }
    with_room[static_cast<size_t>(room - length)].push_back(row);
    rooms.insert(room - length);
  }
  DatasetWriter writer(to, set->type());
  std::vector<int32_t> ids;
  std::vector<uint8_t> counts;
  std::vector<float> weights;
  for (int64_t document : first) {
    for (; document >= 0; document = next[static_cast<size_t>(document)]) {
      ids.resize(static_cast<size_t>(set->document_length(document)));
      set->read(set->document_begin(document), ids);
      counts.resize(set->has_mask() ? ids.size() : 0);
      set->read_counts(set->document_begin(document), counts);
      weights.resize(set->has_weights() ? ids.size() : 0);
      set->read_weights(set->document_begin(document), weights);
      writer.append(ids, counts, weights);
      writer.end_document();
    }
    writer.end_row();
  }
  writer.commit();
  return std::ssize(first);
}

int64_t pair_rows(const std::string& from, const std::string& to) {
  const auto set = TokenDataset::open(from);
  DatasetWriter writer(to, set->type());
  std::vector<int32_t> ids;
  std::vector<uint8_t> counts;
  for (int64_t pair = 0; pair < set->documents(); ++pair) {
    ids.resize(static_cast<size_t>(set->document_length(pair)));
    counts.resize(ids.size());
    set->read(set->document_begin(pair), ids);
    set->read_counts(set->document_begin(pair), counts);
    const auto answer = std::ranges::find(counts, 1);
    const auto second = std::ranges::find(answer, counts.end(), 0);
    check(second != counts.end(), ErrorCode::kInternal, "{}: pair {} is one sequence", from, pair);
    const auto first = static_cast<size_t>(second - counts.begin());
    writer.append(std::span(ids).first(first), std::span(counts).first(first));
    writer.end_document();
    writer.append(std::span(ids).subspan(first), std::span(counts).subspan(first));
    writer.end_row();
  }
  writer.commit();
  return set->documents();
}

}  // namespace octet
