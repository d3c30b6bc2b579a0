// The fake driver's functions for stream capture and graphs.
//
// While a stream is capturing, work becomes a node of the graph instead of being run. Waits for events that were
// recorded in the same capture become edges. A replay runs nodes at the same time if no path of edges orders them.
#include <algorithm>
#include <atomic>
#include <thread>
#include <utility>

#include "driver_state.h"
#include "hooks.h"

namespace tutti::cuda::fake {
namespace {

// Makes the handle of a node from the handle of its graph and its index. The fake driver has no function that takes the
// handle of a node.
CUgraphNode node_handle(std::uintptr_t graph, std::size_t index) {
  return as_handle<CUgraphNode>((graph << 16U) + index + 1);
}

CUresult stream_begin_capture(CUstream handle, CaptureMode mode) {
  DriverState& own = driver_state();
  const std::lock_guard lock(own.mutex);
  std::shared_ptr<Stream> stream;
  if (const CUresult result = find_stream(handle, stream); result != CUresult::kSuccess) return result;
  if (stream->legacy) return CUresult::kStreamCaptureUnsupported;
  if (stream->capture != nullptr) return CUresult::kInvalidValue;
  auto capture = std::make_shared<Capture>();
  capture->id = own.next_id++;
  capture->graph = std::make_shared<Graph>();
  capture->origin = stream.get();
  capture->mode = mode;
  capture->thread = std::this_thread::get_id();
  stream->capture = capture;
  stream->tail.clear();
  own.captures.insert(std::move(capture));
  return CUresult::kSuccess;
}

// Marks a node and all nodes that it depends on, directly or indirectly.
void mark_before(const Graph& graph, std::size_t node, std::vector<bool>& marked) {
  std::vector<std::size_t> left = {node};
  while (!left.empty()) {
    const std::size_t next = left.back();
    left.pop_back();
    if (marked[next]) continue;
    marked[next] = true;
    left.insert(left.end(), graph.nodes[next].after.begin(), graph.nodes[next].after.end());
  }
}

// Whether the stream that began the capture has waited for all nodes of the other streams in the capture. CUDA requires
// that (the streams must be joined) before the capture ends.
bool all_joined(const Capture& capture, const Stream& origin) {
  std::vector<bool> marked(capture.graph->nodes.size());
  for (const std::size_t node : origin.tail) mark_before(*capture.graph, node, marked);
  return std::find(marked.begin(), marked.end(), false) == marked.end();
}

// Ends the capture in all streams that belong to it.
void end_capture(const std::shared_ptr<Capture>& capture) {
  DriverState& own = driver_state();
  own.captures.erase(capture);
  capture->status = CaptureStatus::kNone;
  const auto forget = [&](Stream& stream) {
    if (stream.capture != capture) return;
    stream.capture.reset();
    stream.tail.clear();
  };
  for (const auto& [handle, stream] : own.streams.all()) forget(*stream);
  for (const auto& [handle, context] : own.contexts.all()) {
    for (const auto& [thread, stream] : context->per_thread) forget(*stream);
  }
}

CUresult stream_end_capture(CUstream handle, CUgraph* out) {
  if (out == nullptr) return CUresult::kInvalidValue;
  *out = nullptr;
  DriverState& own = driver_state();
  const std::lock_guard lock(own.mutex);
  std::shared_ptr<Stream> stream;
  if (const CUresult result = find_stream(handle, stream); result != CUresult::kSuccess) return result;
  const auto capture = stream->capture;
  if (capture == nullptr) return CUresult::kInvalidValue;
  if (capture->origin != stream.get()) {
    capture->status = CaptureStatus::kInvalidated;
    return CUresult::kStreamCaptureUnmatched;
  }
  if (capture->mode != CaptureMode::kRelaxed && capture->thread != std::this_thread::get_id()) {
    return CUresult::kStreamCaptureWrongThread;
  }
  const bool valid = capture->status == CaptureStatus::kActive;
  const bool joined = all_joined(*capture, *stream);
  end_capture(capture);
  if (!valid) return CUresult::kStreamCaptureInvalidated;
  if (!joined) return CUresult::kStreamCaptureUnjoined;
  std::uintptr_t graph = own.graphs.handle_of(capture->graph.get());
  if (graph == 0) graph = own.graphs.add(capture->graph);
  *out = as_handle<CUgraph>(graph);
  return CUresult::kSuccess;
}

CUresult stream_is_capturing(CUstream handle, CaptureStatus* status) {
  if (status == nullptr) return CUresult::kInvalidValue;
  const std::lock_guard lock(driver_state().mutex);
  std::shared_ptr<Stream> stream;
  if (const CUresult result = find_stream(handle, stream); result != CUresult::kSuccess) return result;
  *status = stream->capture == nullptr ? CaptureStatus::kNone : stream->capture->status;
  return CUresult::kSuccess;
}

CUresult stream_get_capture_info(CUstream handle, CaptureStatus* status, std::uint64_t* id, CUgraph* graph,
                                 const CUgraphNode** dependencies, std::size_t* count) {
  if (status == nullptr) return CUresult::kInvalidValue;
  DriverState& own = driver_state();
  const std::lock_guard lock(own.mutex);
  std::shared_ptr<Stream> stream;
  if (const CUresult result = find_stream(handle, stream); result != CUresult::kSuccess) return result;
  *status = stream->capture == nullptr ? CaptureStatus::kNone : stream->capture->status;
  if (*status != CaptureStatus::kActive) return CUresult::kSuccess;
  if (id != nullptr) *id = stream->capture->id;
  const auto& captured = stream->capture->graph;
  std::uintptr_t number = own.graphs.handle_of(captured.get());
  if (number == 0 && graph != nullptr) number = own.graphs.add(captured);
  if (graph != nullptr) *graph = as_handle<CUgraph>(number);
  stream->tail_handles.clear();
  for (const std::size_t node : stream->tail) stream->tail_handles.push_back(node_handle(number, node));
  if (dependencies != nullptr) *dependencies = stream->tail_handles.data();
  if (count != nullptr) *count = stream->tail_handles.size();
  return CUresult::kSuccess;
}

CUresult thread_exchange_capture_mode(CaptureMode* mode) {
  if (mode == nullptr) return CUresult::kInvalidValue;
  std::swap(*mode, thread_capture_mode());
  return CUresult::kSuccess;
}

// Divides the nodes into chains. A node is added to a chain if it depends on the last node of that chain; otherwise it
// starts a new chain.
std::vector<std::vector<std::size_t>> chains_of(const Graph& graph) {
  std::vector<std::vector<std::size_t>> chains;
  for (std::size_t node = 0; node < graph.nodes.size(); ++node) {
    const auto& after = graph.nodes[node].after;
    const auto fits = [&](const std::vector<std::size_t>& chain) {
      return std::find(after.begin(), after.end(), chain.back()) != after.end();
    };
    const auto chain = std::find_if(chains.begin(), chains.end(), fits);
    if (chain != chains.end()) {
      chain->push_back(node);
    } else {
      chains.push_back({node});
    }
  }
  return chains;
}

// One replay of an executable graph. run() returns when every node has run or was skipped because of an error. The
// first chain runs on the calling thread, and each other chain on a thread of its own.
class Replay {
 public:
  explicit Replay(const GraphExec& executable) : executable_(executable), done_(executable.graph->nodes.size()) {}

  CUresult run() {
    std::vector<std::thread> threads;
    for (std::size_t chain = 1; chain < executable_.chains.size(); ++chain) {
      threads.emplace_back([this, chain] {
        const DriverScope inside(1);
        run_chain(executable_.chains[chain]);
      });
    }
    if (!executable_.chains.empty()) run_chain(executable_.chains.front());
    for (std::thread& thread : threads) thread.join();
    return result_.load();
  }

 private:
  void run_chain(const std::vector<std::size_t>& chain) {
    for (const std::size_t index : chain) {
      const Node& node = executable_.graph->nodes[index];
      for (const std::size_t before : node.after) {
        if (!wait_until([&] { return done_[before].load(std::memory_order_acquire); }, node.what)) {
          fail(CUresult::kLaunchTimeout);
        }
      }
      if (result_.load() == CUresult::kSuccess) fail(node.run());
      done_[index].store(true, std::memory_order_release);
    }
  }
  void fail(CUresult result) {
    CUresult none = CUresult::kSuccess;
    if (result != CUresult::kSuccess) result_.compare_exchange_strong(none, result);
  }

  const GraphExec& executable_;
  std::vector<std::atomic<bool>> done_;
  std::atomic<CUresult> result_{CUresult::kSuccess};
};

CUresult graph_instantiate(CUgraphExec* out, CUgraph handle, unsigned long long flags) {
  if (out == nullptr || flags != 0) return CUresult::kInvalidValue;
  DriverState& own = driver_state();
  const std::lock_guard lock(own.mutex);
  const auto graph = own.graphs.find(handle);
  if (graph == nullptr) return CUresult::kInvalidHandle;
  auto executable = std::make_shared<GraphExec>();
  executable->graph = std::make_shared<Graph>(*graph);
  executable->chains = chains_of(*graph);
  *out = as_handle<CUgraphExec>(own.executables.add(std::move(executable)));
  return CUresult::kSuccess;
}

CUresult graph_launch(CUgraphExec handle, CUstream stream_handle) {
  DriverState& own = driver_state();
  const std::lock_guard lock(own.mutex);
  const auto executable = own.executables.find(handle);
  if (executable == nullptr) return CUresult::kInvalidHandle;
  std::shared_ptr<Stream> stream;
  if (const CUresult result = find_stream(stream_handle, stream); result != CUresult::kSuccess) return result;
  Work work{"cuGraphLaunch", [executable] { return Replay(*executable).run(); }, {}};
  if (executable->last) work.after.push_back(*executable->last);
  std::uint64_t ticket = 0;
  const CUresult result = submit(stream, std::move(work), &ticket);
  if (result == CUresult::kSuccess && ticket != 0) executable->last = QueuePosition{stream->queue, ticket};
  return result;
}

CUresult graph_get_nodes(CUgraph handle, CUgraphNode* nodes, std::size_t* count) {
  if (count == nullptr) return CUresult::kInvalidValue;
  const std::lock_guard lock(driver_state().mutex);
  const auto graph = driver_state().graphs.find(handle);
  if (graph == nullptr) return CUresult::kInvalidHandle;
  const std::size_t capacity = *count;
  *count = graph->nodes.size();
  if (nodes == nullptr) return CUresult::kSuccess;
  *count = std::min(capacity, graph->nodes.size());
  for (std::size_t i = 0; i < *count; ++i) nodes[i] = node_handle(reinterpret_cast<std::uintptr_t>(handle), i);
  return CUresult::kSuccess;
}

CUresult graph_exec_destroy(CUgraphExec handle) {
  const std::lock_guard lock(driver_state().mutex);
  return driver_state().executables.erase(handle) ? CUresult::kSuccess : CUresult::kInvalidHandle;
}

CUresult graph_destroy(CUgraph handle) {
  const std::lock_guard lock(driver_state().mutex);
  return driver_state().graphs.erase(handle) ? CUresult::kSuccess : CUresult::kInvalidHandle;
}

}  // namespace

void bind_graphs(DriverApi& api) {
  bind<&stream_begin_capture>(api.stream_begin_capture);
  bind<&stream_end_capture>(api.stream_end_capture);
  bind<&stream_is_capturing>(api.stream_is_capturing);
  bind<&stream_get_capture_info>(api.stream_get_capture_info);
  bind<&thread_exchange_capture_mode>(api.thread_exchange_capture_mode);
  bind<&graph_instantiate>(api.graph_instantiate);
  bind<&graph_launch>(api.graph_launch);
  bind<&graph_get_nodes>(api.graph_get_nodes);
  bind<&graph_exec_destroy>(api.graph_exec_destroy);
  bind<&graph_destroy>(api.graph_destroy);
}

}  // namespace tutti::cuda::fake
