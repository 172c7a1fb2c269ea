#include "trainer/train/training/replicas.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <absl/strings/str_split.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <string_view>

#include <narrowcast/consensus.h>
#include <narrowcast/errors.h>
#include "hooks/table/hook_table.h"
#include "ops/common/text.h"
#include "trainer/base/files/hash.h"
#include "trainer/base/files/json.h"

namespace narrowcast::training {
namespace {

uint64_t hash_bits(const at::Tensor& tensor, uint64_t hash = kHashStart) {
  const at::Tensor data = tensor.detach().cpu().contiguous();
  return hash_of_content({static_cast<const char*>(data.const_data_ptr()), data.nbytes()}, hash);
}

std::vector<std::string> hashes_on_all_ranks(const ProcessGroupPtr& group, const std::vector<at::Tensor>& tensors) {
  uint64_t hash = kHashStart;
  for (const at::Tensor& tensor : tensors) hash = hash_bits(tensor, hash);
  return all_gather_text(group, absl::StrCat(hash));
}

bool all_equal(const std::vector<std::string>& hashes) {
  return std::ranges::all_of(hashes, [&](const std::string& hash) { return hash == hashes[0]; });
}

// The ranks grouped by hash, the largest group first. Groups of the same size are in the order of their ranks.
std::vector<std::vector<int64_t>> ranks_that_agree(const std::vector<std::string>& hashes) {
  std::map<std::string, std::vector<int64_t>> by_hash;
  for (size_t rank = 0; rank < hashes.size(); ++rank) by_hash[hashes[rank]].push_back(static_cast<int64_t>(rank));
  std::vector<std::vector<int64_t>> groups;
  for (const auto& [hash, ranks] : by_hash) groups.push_back(ranks);
  std::ranges::sort(groups, [](const auto& a, const auto& b) {
    return a.size() != b.size() ? a.size() > b.size() : a.front() < b.front();
  });
  return groups;
}

// Describes which ranks differ. If most ranks agree, it names the others.
std::string blame(const std::vector<std::string>& hashes) {
  const std::vector<std::vector<int64_t>> groups = ranks_that_agree(hashes);
  if (2 * groups[0].size() <= hashes.size()) {
    const auto describe = [](std::string* out, const std::vector<int64_t>& ranks) {
      absl::StrAppend(out, describe_ranks(ranks));
    };
    return absl::StrCat(absl::StrJoin(groups, " from ", describe), ", without a majority that shows which is wrong");
  }
  std::vector<int64_t> others;
  for (size_t i = 1; i < groups.size(); ++i) others.insert(others.end(), groups[i].begin(), groups[i].end());
  std::ranges::sort(others);
  return absl::StrCat(describe_ranks(others), " from ", describe_ranks(groups[0]));
}

// A collective among ranks of which some differ: describes where they differ.
std::string describe_difference(const ProcessGroupPtr& group, const checkpoint::TensorMap& replica) {
  std::vector<uint64_t> own;
  for (const auto& [name, tensor] : replica) own.push_back(hash_bits(tensor));
  std::vector<std::vector<std::string>> of_ranks;
  for (const std::string& text : all_gather_text(group, absl::StrJoin(own, ","))) {
    of_ranks.push_back(absl::StrSplit(text, ','));
    TORCH_CHECK_WITH(DistBackendError, of_ranks.back().size() == own.size(), "rank ", of_ranks.size() - 1, " sent ",
                     of_ranks.back().size(), " hashes of ", own.size(), " tensors");
  }
  std::string first;
  size_t count = 0;
  for (auto [at, i] = std::pair(replica.begin(), size_t{0}); at != replica.end(); ++at, ++i) {
    if (std::ranges::all_of(of_ranks, [&, i = i](const auto& hashes) { return hashes[i] == of_ranks[0][i]; })) continue;
    if (count++ == 0) first = at->first;
  }
  return absl::StrCat(in_quotes(first), ", the first of ", count, " of ", own.size(), " tensors");
}

// Where pieces of any rank begin or end, by the tensor's name.
using Borders = std::map<std::string, std::set<int64_t>>;

Borders borders_on_all_ranks(const ProcessGroupPtr& group, const pieces::HeldPieces& held) {
  constexpr const char* kSource = "comparing copies of the optimizer's shards";
  Borders borders;
  for (const std::string& text : all_gather_text(group, pieces::to_json(held.holding()).dump())) {
    for (const pieces::Range& range : pieces::read_holding(files::parse_json(text, kSource), kSource).ranges) {
      borders[range.name].insert({range.begin, range.end});
    }
  }
  return borders;
}

// The hashes of the pieces, cut at all borders: a line with a name, and one with its hash.
std::string hashes_of(const pieces::HeldPieces& held, const Borders& borders) {
  std::string text;
  for (const pieces::Piece& piece : held.pieces) {
    const std::set<int64_t>& cuts = borders.at(piece.range.name);
    for (auto begin = cuts.find(piece.range.begin); *begin < piece.range.end; ++begin) {
      const pieces::Range range = {piece.range.name, *begin, *std::next(begin)};
      const std::string name = pieces::describe(range);
      absl::StrAppend(&text, name, ".step\n", piece.step.value_or(0), "\n");
      for (const auto& [tensor_name, tensor] : piece.tensors) {
        const at::Tensor part = tensor.narrow(0, range.begin - piece.range.begin, range.numel());
        absl::StrAppend(&text, name, ".", tensor_name, "\n", hash_bits(part), "\n");
      }
    }
  }
  return text;
}

// The hashes of one tensor of a piece, and the ranks that hold it.
struct Copies {
  std::vector<std::string> hashes;
  std::vector<int64_t> ranks;
};

}  // namespace

bool replicas_must_be_equal(const TrainingSetup& setup, const ReplicatedModel& model) {
  const bool may_round_differently = hooks::hook_row(setup.ddp.hook()).approximates() &&
                                     setup.ddp.power_sgd().memory == hooks::PowerSgdMemory::kAveraged;
  return setup.group->getSize() > 1 && setup.outer == std::nullopt && model.keeps_replicas_equal() &&
         !may_round_differently;
}

bool equal_on_all_ranks(const ProcessGroupPtr& group, const std::vector<at::Tensor>& tensors) {
  return all_equal(hashes_on_all_ranks(group, tensors));
}

void check_replicas(const ProcessGroupPtr& group, const checkpoint::TensorMap& replica, int64_t after_step) {
  std::vector<at::Tensor> tensors;
  for (const auto& [name, tensor] : replica) tensors.push_back(tensor);
  const std::vector<std::string> hashes = hashes_on_all_ranks(group, tensors);
  if (all_equal(hashes)) return;
  const std::string where = describe_difference(group, replica);
  NARROWCAST_CHECK_REPLICAS(false, "replicas differ after step ", after_step, ": ", blame(hashes), ", in ", where);
}

void check_shards(const ProcessGroupPtr& group, const pieces::HeldPieces& held, int64_t after_step) {
  std::map<std::string, Copies> by_name;
  const std::vector<std::string> texts = all_gather_text(group, hashes_of(held, borders_on_all_ranks(group, held)));
  for (size_t rank = 0; rank < texts.size(); ++rank) {
    const std::vector<std::string> lines = absl::StrSplit(texts[rank], '\n', absl::SkipEmpty());
    TORCH_CHECK_WITH(DistBackendError, lines.size() % 2 == 0, "rank ", rank, " sent ", lines.size(),
                     " names and hashes of its shards");
    for (size_t i = 0; i < lines.size(); i += 2) {
      Copies& copies = by_name[lines[i]];
      copies.hashes.push_back(lines[i + 1]);
      copies.ranks.push_back(static_cast<int64_t>(rank));
    }
  }
  const auto check = [&](const std::string& what, const auto& is_wrong) {
    const auto first = std::ranges::find_if(by_name, is_wrong);
    if (first == by_name.end()) return;
    NARROWCAST_CHECK_REPLICAS(false, "copies of the optimizer's shards ", what, " after step ", after_step, ": on ",
                              describe_ranks(first->second.ranks), ", in ", in_quotes(first->first), ", the first of ",
                              std::ranges::count_if(by_name, is_wrong), " tensors");
  };
  check("differ", [](const auto& entry) { return !all_equal(entry.second.hashes); });
  check("are missing", [](const auto& entry) { return entry.second.ranks.size() < 2; });
}

}  // namespace narrowcast::training
