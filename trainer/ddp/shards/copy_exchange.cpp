#include "trainer/ddp/shards/copy_exchange.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "ops/collectives/all_reduce/codec/wire_codec.h"
#include "ops/common/backend_errors.h"
#include "ops/cpu/wire/wire_kernels.h"
#include "trainer/ddp/shards/shard_exchange.h"

namespace narrowcast::sharding {
namespace {

// Elements of a shard in one message. Messages must begin at blocks of every format.
constexpr int64_t kCopyNumel = int64_t{1} << 18;
static_assert(kCopyNumel % cpu::kWireGrain == 0);

constexpr int64_t kCopyHeaderBytes = engine::Transport::kLeastBytes;
enum class CopyHeader : uint8_t { kNumbers, kFailure };  // The first byte of a message.

// One call of send(), which outlives its jobs.
struct CopyCall {
  const std::string& name;
  const collectives::WireCodec& codec;
  const Elements& own;
  const std::vector<Elements>& copies;
  bool fails = false;                   // This rank.
  std::optional<int64_t> failed_owner;  // Written on the engine's thread.
  std::vector<int64_t> owners;
  at::Tensor numbers = at::empty({kCopyNumel}, at::kFloat);  // Used on the engine's thread.
};

// The elements from `begin` on of all shards.
class CopyJob final : public engine::Job {
 public:
  struct Part {
    int64_t begin = 0;
    int64_t holder = kNoCopy;
    int64_t numel = 0;            // The own shard's.
    std::vector<int64_t> numels;  // The owners' shards'.
  };

  CopyJob(CopyCall& call, Part part) : call_(call), part_(std::move(part)) {}

  int64_t bytes_sent() const { return part_.numel > 0 ? bytes_of(part_.numel) : 0; }

  std::string name() const override { return call_.name; }
  int64_t advances() const override { return 0; }

  void start(engine::Transport& transport) override {
    messages_ = {new_message(part_.numel)};
    receives_.clear();
    for (size_t i = 0; i < part_.numels.size(); ++i) {
      const bool is_sent = part_.numels[i] > 0;
      messages_.push_back(new_message(part_.numels[i]));
      receives_.push_back(is_sent ? transport.post_receive({messages_[1 + i], call_.owners[i], /*channel=*/0}) : -1);
    }
    if (part_.numel > 0) {
      write(messages_[0].mutable_data_ptr<uint8_t>());
      transport.send({messages_[0], part_.holder, /*channel=*/0});
    }
  }

  at::Tensor finish(engine::Transport& transport) override {
    for (size_t i = 0; i < part_.numels.size(); ++i) {
      if (part_.numels[i] > 0) {
        transport.wait_receive(receives_[i]);
        read(i, messages_[1 + i].const_data_ptr<uint8_t>());
      }
    }
    messages_.clear();
    return {};
  }

 private:
  at::Tensor new_message(int64_t numel) const { return at::empty({numel > 0 ? bytes_of(numel) : 0}, at::kByte); }

  int64_t bytes_of(int64_t numel) const { return kCopyHeaderBytes + encoded_size(numel, call_.codec.format()); }

  void write(uint8_t* message) {
    std::memset(message, static_cast<int>(call_.fails ? CopyHeader::kFailure : CopyHeader::kNumbers), kCopyHeaderBytes);
    if (call_.fails) {
      std::memset(message + kCopyHeaderBytes, 0, bytes_of(part_.numel) - kCopyHeaderBytes);
      return;
    }
    auto* const numbers = call_.numbers.mutable_data_ptr<float>();
    std::fill_n(numbers, part_.numel, 0.0F);  // Gaps.
    call_.own.copy_to(numbers, part_.begin, part_.numel);
    call_.codec.encode({}, {call_.numbers, {0, part_.numel}}, message + kCopyHeaderBytes);
    call_.codec.decode(message + kCopyHeaderBytes, {call_.numbers, {0, part_.numel}});
    call_.own.copy_from(numbers, part_.begin, part_.numel);
  }

  void read(size_t copy, const uint8_t* message) {
    if (message[0] == static_cast<uint8_t>(CopyHeader::kFailure)) {
      call_.failed_owner = call_.owners[copy];
    } else if (!call_.fails) {
      call_.codec.decode(message + kCopyHeaderBytes, {call_.numbers, {0, part_.numels[copy]}});
      call_.copies[copy].copy_from(call_.numbers.const_data_ptr<float>(), part_.begin, part_.numels[copy]);
    }
  }

  CopyCall& call_;
  const Part part_;
  std::vector<at::Tensor> messages_;  // The own one, then those of the owners.
  std::vector<int64_t> receives_;     // By owner.
};

std::vector<int64_t> owners_of_copies(const std::vector<int64_t>& holders, int64_t rank) {
  std::vector<int64_t> owners;
  for (int64_t owner = 0; owner < std::ssize(holders); ++owner) {
    if (holders[owner] == rank) owners.push_back(owner);
  }
  return owners;
}

}  // namespace

std::vector<int64_t> copy_holders(const node::NodeLayout& nodes, const node::NodeLayout& layout) {
  std::vector<std::vector<int64_t>> owners;  // By node that has some.
  for (int64_t node = 0; node < nodes.nodes(); ++node) {
    std::vector<int64_t> of_node;
    for (const int64_t rank : nodes.ranks_of(node)) {
      if (layout.local_rank_of(rank) < layout.segments()) of_node.push_back(rank);
    }
    if (!of_node.empty()) owners.push_back(std::move(of_node));
  }
  TORCH_CHECK_VALUE(owners.size() > 1, "copies: 2 copies of each shard need two nodes, but all ", nodes.world_size(),
                    " ranks are on one");
  std::vector<int64_t> holders(nodes.world_size(), kNoCopy);
  for (size_t node = 0; node < owners.size(); ++node) {
    const std::vector<int64_t>& next = owners[(node + 1) % owners.size()];
    for (size_t i = 0; i < owners[node].size(); ++i) holders[owners[node][i]] = next[i % next.size()];
  }
  return holders;
}

CopyExchange::CopyExchange(ProcessGroupPtr group, std::vector<int64_t> holders)
    : group_(std::move(group)),
      holders_(std::move(holders)),
      owners_(owners_of_copies(holders_, group_->getRank())),
      engine_(engine::Engine::for_group(group_)) {}

std::exception_ptr CopyExchange::send(const std::string& name, WireFormat format, const Elements& own,
                                      const std::vector<Elements>& copies, const std::exception_ptr& failure) {
  const std::shared_ptr<const collectives::WireCodec> codec = collectives::make_wire_codec(format, at::kCPU);
  const int64_t rank = group_->getRank();
  CopyCall call{.name = name,
                .codec = *codec,
                .own = own,
                .copies = copies,
                .fails = failure != nullptr,
                .failed_owner = {},
                .owners = owners_};
  std::vector<std::shared_ptr<engine::Job>> jobs;
  for (int64_t index = 0; index * kCopyNumel < std::ranges::max(numels_); ++index) {
    const auto numel_of = [&](int64_t owner) { return part_numel(numels_[owner], index, kCopyNumel); };
    CopyJob::Part part{.begin = index * kCopyNumel, .holder = holders_[rank], .numel = numel_of(rank), .numels = {}};
    for (const int64_t owner : owners_) part.numels.push_back(numel_of(owner));
    auto job = std::make_shared<CopyJob>(call, std::move(part));
    bytes_sent_ += job->bytes_sent();
    jobs.push_back(std::move(job));
  }
  submit_and_wait(group_, *engine_, name, jobs);
  if (!failure && call.failed_owner) {
    try {
      throw_backend_error(rank, name, c10::str("rank ", *call.failed_owner, " could not take part in it"));
    } catch (...) {
      return std::current_exception();
    }
  }
  return failure;
}

}  // namespace narrowcast::sharding
