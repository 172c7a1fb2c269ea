#include "trainer/launcher/job/numa_binding.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <map>
#include <set>

namespace narrowcast::launcher {
namespace {

using ProcessorList = std::vector<Processor>;

template <class Wanted>
ProcessorList those_of(const ProcessorList& all, const Wanted& wanted) {
  ProcessorList some;
  std::ranges::copy_if(all, std::back_inserter(some), wanted);
  return some;
}

// Groups the processors by `key`, in ascending order of keys.
std::vector<ProcessorList> groups_of(const ProcessorList& all, int64_t Processor::*key) {
  std::map<int64_t, ProcessorList> groups;
  for (const Processor& processor : all) {
    groups[processor.*key].push_back(processor);
  }
  std::vector<ProcessorList> list;
  for (auto& [number, group] : groups) {
    list.push_back(std::move(group));
  }
  return list;
}

// Returns the NUMA node of each GPU of the machine, or of each worker if there are fewer GPUs than workers.
std::vector<int64_t> nodes_of_sharers(int64_t workers, const NodeProcessors& node) {
  if (std::ssize(node.nodes_of_gpus) >= workers) {
    return node.nodes_of_gpus;
  }
  std::set<int64_t> numbers;
  for (const Processor& processor : node.usable) {
    numbers.insert(processor.node);
  }
  const std::vector<int64_t> in_order(numbers.begin(), numbers.end());
  std::vector<int64_t> nodes;
  for (int64_t worker = 0; worker < workers; ++worker) {
    nodes.push_back(in_order[static_cast<size_t>(worker * std::ssize(in_order) / workers)]);
  }
  return nodes;
}

// One of the `count` workers or GPUs that share a NUMA node: number `index`, from 0.
struct Share {
  int64_t index = 0;
  int64_t count = 0;
};

Share share_of(int64_t worker, const std::vector<int64_t>& nodes) {
  const auto end = nodes.begin() + worker;
  return {.index = std::count(nodes.begin(), end, *end), .count = std::count(nodes.begin(), nodes.end(), *end)};
}

// Returns an equal part of the cores. If the division has a remainder, the first parts have one core more.
ProcessorList exclusive_part(const ProcessorList& near, const Share& share, int64_t worker) {
  const std::vector<ProcessorList> cores = groups_of(near, &Processor::core);
  const int64_t each = std::ssize(cores) / share.count;
  const int64_t longer = std::ssize(cores) % share.count;
  TORCH_CHECK_VALUE(each > 0, "--numa_binding=exclusive: local rank ", worker, ": NUMA node ", near.front().node,
                    " has ", cores.size(), " usable cores for ", share.count, " workers or GPUs");
  const int64_t first = share.index * each + std::min(share.index, longer);
  ProcessorList part;
  for (int64_t core = first; core < first + each + (share.index < longer ? 1 : 0); ++core) {
    const ProcessorList& own = cores[static_cast<size_t>(core)];
    part.insert(part.end(), own.begin(), own.end());
  }
  return part;
}

// Assigns the core complexes in turn, beginning with those that have the most usable processors.
ProcessorList core_complex(const ProcessorList& near, const Share& share) {
  std::vector<ProcessorList> complexes = groups_of(near, &Processor::cache);
  std::ranges::stable_sort(complexes, std::greater<>(), [](const ProcessorList& complex) { return complex.size(); });
  return complexes[static_cast<size_t>(share.index % std::ssize(complexes))];
}

ProcessorList socket_of(const ProcessorList& all, const ProcessorList& near) {
  std::set<int64_t> nodes;
  for (const Processor& processor : all) {
    if (processor.socket == near.front().socket) nodes.insert(processor.node);
  }
  return those_of(all, [&](const Processor& processor) { return nodes.contains(processor.node); });
}

}  // namespace

NumaBinding parse_numa_binding(const std::string& flag, const std::string& text) {
  const std::map<std::string, NumaBinding> modes = {{"node", NumaBinding::kNode},
                                                    {"socket", NumaBinding::kSocket},
                                                    {"exclusive", NumaBinding::kExclusive},
                                                    {"core-complex", NumaBinding::kCoreComplex}};
  const auto found = modes.find(text);
  TORCH_CHECK_VALUE(found != modes.end(), flag, "=", text, ": must be node, socket, exclusive or core-complex");
  return found->second;
}

std::vector<std::vector<int64_t>> bind_workers(NumaBinding binding, int64_t workers, const NodeProcessors& node) {
  std::vector<std::vector<int64_t>> bound(static_cast<size_t>(workers));
  const std::vector<int64_t> nodes =
      binding == NumaBinding::kNone ? std::vector<int64_t>() : nodes_of_sharers(workers, node);
  for (int64_t worker = 0; binding != NumaBinding::kNone && worker < workers; ++worker) {
    const int64_t own = nodes[static_cast<size_t>(worker)];
    const ProcessorList near =
        those_of(node.usable, [own](const Processor& processor) { return processor.node == own; });
    TORCH_CHECK_VALUE(!near.empty(), "--numa_binding: local rank ", worker, ": NUMA node ", own,
                      " has no processor that this process may use");
    const Share share = share_of(worker, nodes);
    const ProcessorList part = binding == NumaBinding::kExclusive     ? exclusive_part(near, share, worker)
                               : binding == NumaBinding::kCoreComplex ? core_complex(near, share)
                               : binding == NumaBinding::kSocket      ? socket_of(node.usable, near)
                                                                      : near;
    std::ranges::transform(part, std::back_inserter(bound[static_cast<size_t>(worker)]), &Processor::number);
    std::ranges::sort(bound[static_cast<size_t>(worker)]);
  }
  return bound;
}

}  // namespace narrowcast::launcher
