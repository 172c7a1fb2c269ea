#include "ops/collectives/all_reduce/stream/stream_exchange.h"

#include <c10/util/Exception.h>

#include <utility>

#include "ops/collectives/all_reduce/algorithms/one_shot.h"
#include "ops/collectives/all_reduce/algorithms/route.h"
#include "ops/collectives/all_reduce/codec/codec.h"
#include "ops/common/backend_errors.h"
#include "ops/common/libtorch_versions.h"

namespace narrowcast::collectives {

void CollectiveCalls::call(const std::string& what, const std::function<void()>& body) const {
  with_backend_errors(rank, what, [&] { order == nullptr ? body() : order->enqueue(device, body); });
}

OneLevelStreamExchange::OneLevelStreamExchange(c10::intrusive_ptr<c10d::ProcessGroup> group,
                                               AllReduceJobOptions options, int64_t exact_numel,
                                               CollectiveCalls collectives)
    : group_(std::move(group)),
      options_(std::move(options)),
      exact_numel_(exact_numel),
      collectives_(std::move(collectives)),
      route_(options_.codec ? Route::kOneShot
                            : choose_route(options_.numel, world_size(), options_.format, options_.link)),
      wire_codec_(make_wire_codec(options_.format, collectives_.device.type())),
      exact_codec_(make_wire_codec(WireFormat::kFp32, collectives_.device.type())),
      codec_(options_.codec ? options_.codec(collectives_.device)
                            : one_shot_codec(options_.format, collectives_.device.type(), rank())),
      whole_chunks_(whole_chunks()),
      shard_messages_({options_.format, options_.numel, exact_numel, options_.least_chunk_bytes}, world_size()) {
  const bool in_chunks = whole_chunks_.size() > 1 || shard_messages_.chunks() > 1;
  if (in_chunks && collectives_.order == nullptr) {
    collectives_.order = std::make_shared<CollectiveOrder>();
  }
}

// A custom codec may need the whole array for its first element. In variable formats messages equal the engine's.
std::vector<ElementRange> OneLevelStreamExchange::ranges_of_one_shot() const {
  if (!options_.codec && codec::wire::is_variable(options_.format)) {
    return one_shot_result_ranges(options_.numel, codec_->grain());
  }
  const ElementRange whole{0, options_.numel};
  const int64_t count = options_.codec ? 1
                                       : chunk_count(codec_->message_bytes(whole), options_.numel / cpu::kWireGrain,
                                                     options_.least_chunk_bytes);
  return cut(whole, count, codec_->grain());
}

std::vector<OneLevelStreamExchange::WholeChunk> OneLevelStreamExchange::whole_chunks() const {
  std::vector<WholeChunk> chunks;
  int64_t begin = 0;
  for (const ElementRange& range : ranges_of_one_shot()) {
    const int64_t bytes = codec_->message_bytes(range);
    const int64_t exact_bytes = chunks.empty() ? encoded_size(exact_numel_, WireFormat::kFp32) : 0;
    chunks.push_back({range, begin, bytes, slot_bytes(bytes) + slot_bytes(exact_bytes), slot_bytes(bytes)});
    begin += chunks.back().slot * (world_size() + 1);
  }
  return chunks;
}

int64_t OneLevelStreamExchange::payload_bytes() const {
  switch (route_) {
    case Route::kNowhere:
      return 0;
    case Route::kOneShot: {
      int64_t bytes = encoded_size(exact_numel_, WireFormat::kFp32);
      for (const WholeChunk& chunk : whole_chunks_) {
        bytes += chunk.message_bytes;
      }
      return bytes * (world_size() - 1);
    }
    case Route::kTwoShot: {
      int64_t bytes = shard_messages_.message_bytes(rank()) * (world_size() - 2);
      for (int64_t owner = 0; owner < world_size(); ++owner) {
        bytes += shard_messages_.message_bytes(owner);
      }
      return bytes;
    }
  }
  TORCH_CHECK_VALUE(false, "route ", static_cast<int>(route_), " is not a valid Route");
}

// One shot:  for each chunk, the message that is sent and the messages of all ranks.
// Two shots: for all chunks, the messages of the first hop, later of all means; then, for each chunk before its mean,
//            the messages received in the first hop.
int64_t OneLevelStreamExchange::workspace_bytes() const {
  if (options_.numel == 0 || route_ == Route::kNowhere) {
    return 0;
  }
  return route_ == Route::kOneShot ? whole_chunks_.back().begin + whole_chunks_.back().slot * (world_size() + 1)
                                   : 2 * shard_messages_.bytes();
}

void OneLevelStreamExchange::enqueue(const AllReduceCall& call, ExactElements& exact, const StreamMemory& memory) {
  exact.take_from(call.array);
  enqueue_values(call, exact.values(), memory);
  exact.put_back(call.array);
}

void OneLevelStreamExchange::enqueue_values(const AllReduceCall& call, const at::Tensor& exact,
                                            const StreamMemory& memory) {
  if (options_.numel == 0 || route_ == Route::kNowhere) {
    return;
  }
  if (route_ == Route::kOneShot) {
    const Call one{call, {exact, {}, {}}, memory.bytes, {}};
    memory.streams.run(collectives_.device, static_cast<int64_t>(whole_chunks_.size()),
                       {[&](int64_t chunk) { one_shot(one, chunk); }});
    return;
  }
  const Call two{call, {exact, {}, {}}, memory.bytes, memory.bytes.narrow(0, 0, shard_messages_.bytes())};
  const auto take_means = [&](int64_t chunk) {
    send_mean(two, chunk);
    shard_messages_.decode_chunk(two.means, chunk, call.array);
    if (has_exact(chunk)) {
      shard_messages_.decode_exact(two.means, exact);
    }
  };
  memory.streams.run(collectives_.device, shard_messages_.chunks(),
                     {[&](int64_t chunk) { exchange_parts(two, chunk); }, take_means});
}

void OneLevelStreamExchange::enqueue_undecoded(const AllReduceCall& call, const at::Tensor& exact,
                                               const StreamMemory& memory, const at::Tensor& messages) {
  TORCH_INTERNAL_ASSERT(route_ == Route::kTwoShot, "only two shots encode means");
  const Call two{call, {exact, {}, {}}, memory.bytes, messages};
  memory.streams.run(
      collectives_.device, shard_messages_.chunks(),
      {[&](int64_t chunk) { exchange_parts(two, chunk); }, [&](int64_t chunk) { send_mean(two, chunk); }});
}

void OneLevelStreamExchange::one_shot(const Call& call, int64_t chunk) const {
  const WholeChunk& of = whole_chunks_[static_cast<size_t>(chunk)];
  at::Tensor sent = call.workspace.narrow(0, of.begin, of.slot);
  at::Tensor received = call.workspace.narrow(0, of.begin + of.slot, of.slot * world_size());
  codec_->encode(call.mean, of.range, sent.narrow(0, 0, of.message_bytes));
  if (has_exact(chunk)) {
    const SentRange exact{rank(), all_exact()};
    exact_codec_->encode(exact.rounding(call.exact, 0), exact.elements(call.exact),
                         sent.mutable_data_ptr<uint8_t>() + of.exact_begin);
  }
  collectives_.call(options_.all_gather.empty() ? "all-gather of messages of " + options_.name : options_.all_gather,
                    [&] { libtorch::all_gather_on_stream(group_, received, sent); });
  std::vector<at::Tensor> messages;
  RankMessages exact;
  for (int64_t sender = 0; sender < world_size(); ++sender) {
    messages.push_back(received.narrow(0, sender * of.slot, of.message_bytes));
    exact.push_back(received.const_data_ptr<uint8_t>() + sender * of.slot + of.exact_begin);
  }
  codec_->average(call.mean, of.range, messages);
  if (has_exact(chunk)) {
    exact_codec_->average(exact, {call.exact.array, all_exact()});
  }
}

// The other ranks' parts of the own shard, by rank.
at::Tensor OneLevelStreamExchange::received_parts(const Call& call, int64_t chunk) const {
  return call.workspace.narrow(0, shard_messages_.bytes() + shard_messages_.begin(chunk),
                               shard_messages_.slot_bytes(chunk) * (world_size() - 1));
}

// Every rank sends whole slots; the padding of a shorter message is undefined.
void OneLevelStreamExchange::exchange_parts(const Call& call, int64_t chunk) const {
  const int64_t slot = shard_messages_.slot_bytes(chunk);
  at::Tensor sent = call.workspace.narrow(0, shard_messages_.begin(chunk), slot * (world_size() - 1));
  at::Tensor received = received_parts(call, chunk);
  auto* const messages = sent.mutable_data_ptr<uint8_t>();
  const SentRange whole{rank(), {0, options_.numel}};
  wire_codec_->encode_shards(whole.rounding(call.mean, 0), whole.elements(call.mean),
                             shard_messages_.slots_without(chunk, rank()), messages);
  if (has_exact(chunk)) {
    const SentRange exact{rank(), all_exact()};
    exact_codec_->encode_shards(exact.rounding(call.exact, 0), exact.elements(call.exact),
                                shard_messages_.exact_slots_without(rank()), messages + shard_messages_.exact_begin());
  }
  std::vector<int64_t> sizes_sent(world_size(), slot);
  sizes_sent[rank()] = 0;
  std::vector<int64_t> sizes_received = sizes_sent;
  collectives_.call("all-to-all of shards of " + options_.name,
                    [&] { libtorch::all_to_all_on_stream(group_, received, sent, sizes_received, sizes_sent); });
}

void OneLevelStreamExchange::send_mean(const Call& call, int64_t chunk) const {
  const int64_t slot = shard_messages_.slot_bytes(chunk);
  const uint8_t* const received = received_parts(call, chunk).const_data_ptr<uint8_t>();
  const auto parts_from = [&](int64_t first_byte) {
    RankMessages by_rank;
    for (int64_t peer = 0; peer < world_size(); ++peer) {
      const int64_t place = peer - (peer > rank() ? 1 : 0);
      by_rank.push_back(peer == rank() ? nullptr : received + place * slot + first_byte);
    }
    return by_rank;
  };
  at::Tensor mean = call.workspace.narrow(0, shard_messages_.bytes() + shard_messages_.begin(chunk + 1) - slot, slot);
  at::Tensor messages = call.means.narrow(0, shard_messages_.begin(chunk), slot * world_size());
  encode_mean(*wire_codec_, {rank(), shard_messages_.range(rank(), chunk)}, call.mean, parts_from(0),
              mean.mutable_data_ptr<uint8_t>());
  if (has_exact(chunk)) {
    const int64_t exact_begin = shard_messages_.exact_begin();
    encode_mean(*exact_codec_, {rank(), shard_messages_.exact_shard(rank())}, call.exact, parts_from(exact_begin),
                mean.mutable_data_ptr<uint8_t>() + exact_begin);
  }
  collectives_.call("all-gather of means of " + options_.name,
                    [&] { libtorch::all_gather_on_stream(group_, messages, mean); });
}

}  // namespace narrowcast::collectives
