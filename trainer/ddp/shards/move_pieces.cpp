#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <set>
#include <tuple>
#include <utility>

#include <narrowcast/consensus.h>
#include <narrowcast/errors.h>
#include <narrowcast/network_errors.h>
#include "trainer/base/files/json.h"
#include "trainer/ddp/shards/pieces.h"

namespace narrowcast::pieces {
namespace {

using nlohmann::json;

constexpr const char* kMoving = "moving pieces of the optimizer's state";
constexpr int kTag = 0x7069;
constexpr size_t kInFlight = 64;  // transfers that ranks begin before they wait for them
constexpr int64_t kNoStep = -1;

// The pieces that a rank holds, without their elements, and the ranges that it wants. Each rank sends this to all
// others, as JSON.
struct RankPieces {
  struct Header {
    Range range;
    int64_t step = kNoStep;
    std::vector<std::string> tensors;  // names
  };
  std::vector<Header> held;
  std::vector<Range> wanted;
};

json to_json(const Range& range) { return {range.name, range.begin, range.end}; }

Range read_range(const json& text) {
  return {text.at(0).get<std::string>(), text.at(1).get<int64_t>(), text.at(2).get<int64_t>()};
}

std::string text_of(const std::vector<Piece>& held, const std::vector<Range>& wanted) {
  json text = {{"held", json::array()}, {"wanted", json::array()}};
  for (const Piece& piece : held) {
    json tensors = json::array();
    for (const auto& [name, tensor] : piece.tensors) {
      TORCH_CHECK_VALUE(tensor.is_cpu() && tensor.scalar_type() == at::kFloat && tensor.is_contiguous() &&
                            tensor.dim() == 1 && tensor.numel() == piece.range.numel(),
                        kMoving, ": '", name, "' of ", describe(piece.range), " is ", tensor.toString(), " ",
                        tensor.sizes());
      tensors.push_back(name);
    }
    text["held"].push_back({to_json(piece.range), piece.step.value_or(kNoStep), tensors});
  }
  for (const Range& range : wanted) text["wanted"].push_back(to_json(range));
  return text.dump();
}

std::vector<RankPieces> pieces_of_ranks(const ProcessGroupPtr& group, const std::string& own) {
  std::vector<RankPieces> all;
  for (const std::string& text : all_gather_text(group, own)) {
    RankPieces& rank = all.emplace_back();
    try {
      const json read = files::parse_json(text, kMoving);
      for (const json& piece : read.at("held")) {
        rank.held.push_back({.range = read_range(piece.at(0)),
                             .step = piece.at(1).get<int64_t>(),
                             .tensors = piece.at(2).get<std::vector<std::string>>()});
      }
      for (const json& range : read.at("wanted")) rank.wanted.push_back(read_range(range));
    } catch (const json::exception& error) {
      NARROWCAST_CHECK_INPUT(false, kMoving, ": rank ", all.size() - 1, " sent ", files::problem_with(error));
    }
  }
  return all;
}

// A part of a wanted piece, and where it comes from.
struct Part {
  int64_t begin = 0;  // in the parameter
  int64_t end = 0;
  size_t to_rank = 0;
  size_t wanted = 0;  // index of the piece there
  size_t from_rank = 0;
  size_t held = 0;  // index of the piece there
};

// Chooses the parts that make up all wanted pieces. All ranks choose the same.
class Plan {
 public:
  explicit Plan(const std::vector<RankPieces>& ranks) : ranks_(ranks), load_(ranks.size()) {
    for (size_t rank = 0; rank < ranks.size(); ++rank) {
      for (size_t piece = 0; piece < ranks[rank].held.size(); ++piece) {
        holders_[ranks[rank].held[piece].range.name].emplace_back(rank, piece);
      }
    }
    size_t most = 0;
    for (const RankPieces& rank : ranks) most = std::max(most, rank.wanted.size());
    // In turns, so that all ranks receive at once.
    for (size_t piece = 0; piece < most; ++piece) {
      for (size_t rank = 0; rank < ranks.size(); ++rank) {
        if (piece < ranks[rank].wanted.size()) add_parts(rank, piece);
      }
    }
  }

  const std::vector<Part>& parts() const { return parts_; }

 private:
  using Holder = std::pair<size_t, size_t>;  // a rank, and the index of its piece

  const Range& range_of(const Holder& holder) const { return ranks_[holder.first].held[holder.second].range; }

  void add_parts(size_t rank, size_t piece) {
    const Range& wanted = ranks_[rank].wanted[piece];
    const std::vector<Holder>& holders = holders_[wanted.name];
    if (wanted.numel() == 0 && !holders.empty()) {  // Nothing is sent, but the rank gets the step and the names.
      const auto own = std::ranges::find(holders, rank, &Holder::first);
      const auto& [holder, held] = own != holders.end() ? *own : holders.front();
      parts_.push_back({wanted.begin, wanted.end, rank, piece, holder, held});
    }
    for (int64_t begin = wanted.begin; begin < wanted.end;) {
      const auto better = [&](const Holder& a, const Holder& b) {
        return std::tuple(a.first != rank, load_[a.first], a) < std::tuple(b.first != rank, load_[b.first], b);
      };
      const Holder* chosen = nullptr;
      int64_t end = wanted.end;
      for (const Holder& holder : holders) {
        const Range& range = range_of(holder);
        if (range.begin <= begin && begin < range.end && (chosen == nullptr || better(holder, *chosen))) {
          chosen = &holder;
        }
        if (holder.first == rank && range.begin > begin) end = std::min(end, range.begin);
      }
      NARROWCAST_CHECK_INPUT(chosen != nullptr, kMoving, ": no rank holds ", describe({wanted.name, begin, end}));
      end = std::min(end, range_of(*chosen).end);
      parts_.push_back({begin, end, rank, piece, chosen->first, chosen->second});
      load_[chosen->first] += chosen->first == rank ? 0 : end - begin;
      begin = end;
    }
  }

  const std::vector<RankPieces>& ranks_;
  std::map<std::string, std::vector<Holder>> holders_;
  std::vector<int64_t> load_;  // elements that each rank sends
  std::vector<Part> parts_;
};

// The result on one rank: pieces whose tensors are still without values, or are those that it holds.
std::vector<Piece> allocated(const std::vector<RankPieces>& ranks, const std::vector<Part>& parts, size_t own,
                             const std::vector<Piece>& held) {
  std::vector<Piece> result;
  for (const Range& range : ranks[own].wanted) result.push_back({.range = range});
  std::set<size_t> begun;
  for (const Part& part : parts) {
    const RankPieces::Header& header = ranks[part.from_rank].held[part.held];
    if (part.to_rank != own) continue;
    Piece& piece = result[part.wanted];
    if (begun.insert(part.wanted).second) {
      piece.step = header.step == kNoStep ? std::nullopt : std::optional(header.step);
      const bool is_same = part.from_rank == own && header.range == piece.range;
      for (const std::string& name : header.tensors) {
        piece.tensors[name] = is_same ? held[part.held].tensors.at(name) : at::empty({piece.range.numel()}, at::kFloat);
      }
    }
  }
  return result;
}

// Throws the same on all ranks.
void check_parts_belong_together(const std::vector<RankPieces>& ranks, const std::vector<Part>& parts) {
  std::map<std::pair<size_t, size_t>, const RankPieces::Header*> first;  // by rank and wanted piece
  for (const Part& part : parts) {
    const RankPieces::Header& header = ranks[part.from_rank].held[part.held];
    const auto* const expected = first.emplace(std::pair(part.to_rank, part.wanted), &header).first->second;
    NARROWCAST_CHECK_INPUT(header.step == expected->step && header.tensors == expected->tensors, kMoving, ": ",
                           describe(header.range), " on rank ", part.from_rank, " has ", header.tensors.size(),
                           " tensors after step ", header.step, ", but ", describe(expected->range), " has ",
                           expected->tensors.size(), " after step ", expected->step);
  }
}

}  // namespace

std::vector<Piece> move_pieces(const ProcessGroupPtr& group, const std::vector<Piece>& held,
                               const std::vector<Range>& wanted) {
  const std::vector<RankPieces> ranks = pieces_of_ranks(group, text_of(held, wanted));
  const Plan plan(ranks);
  check_parts_belong_together(ranks, plan.parts());
  const auto own = static_cast<size_t>(group->getRank());
  std::vector<Piece> result = allocated(ranks, plan.parts(), own, held);
  with_network_errors(group->getRank(), kMoving, [&] {
    std::vector<c10::intrusive_ptr<c10d::Work>> works;
    size_t begun = 0;  // on all ranks
    for (const Part& part : plan.parts()) {
      const auto part_of = [&](const Piece& piece, const std::string& name) {
        return piece.tensors.at(name).narrow(0, part.begin - piece.range.begin, part.end - part.begin);
      };
      for (const std::string& name : ranks[part.from_rank].held[part.held].tensors) {
        if (part.from_rank == own && part.to_rank == own) {
          const at::Tensor to = part_of(result[part.wanted], name);
          const at::Tensor from = part_of(held[part.held], name);
          if (!to.is_alias_of(from)) to.copy_(from);
          continue;
        }
        if (part.from_rank == part.to_rank || part.begin == part.end) continue;
        if (part.from_rank == own) {
          std::vector<at::Tensor> message = {part_of(held[part.held], name)};
          works.push_back(group->send(message, static_cast<int>(part.to_rank), kTag));
        } else if (part.to_rank == own) {
          std::vector<at::Tensor> message = {part_of(result[part.wanted], name)};
          works.push_back(group->recv(message, static_cast<int>(part.from_rank), kTag));
        }
        if (++begun % kInFlight == 0) {
          for (const auto& work : std::exchange(works, {})) work->wait();
        }
      }
    }
    for (const auto& work : works) work->wait();
  });
  return result;
}

}  // namespace narrowcast::pieces
