#include <algorithm>

#include "train/parallel/replicas.h"

namespace tutti::train {
namespace {

// A parameter server. All parameters of the model form one flat tensor, which is divided into equal parts: server s
// holds the values and the optimizer state of part s.
class Server final : public BaseReplicas {
 public:
  Server(const Layers& layers, Comm& ranks, std::int32_t servers, const ReplicaOptions& options)
      : ranks_(ranks), servers_(servers) {
    const Bucket bucket = make_buckets(layers, options.first_layer, INT64_MAX, servers).at(0);
    Tensor values = torch::zeros({bucket.padded}, torch::TensorOptions(torch::kFloat32).device(options.device));
    move_values(layers, bucket, values);
    ranks.broadcast(values, 0);
    const std::int64_t length = bucket.padded / servers;
    const std::int64_t begin = ranks.rank() * length;
    const Tensor mine = values.narrow(0, begin, length).clone();
    shards_.push_back({mine, torch::zeros_like(mine), slices_within(bucket.slices, begin, length)});
    for (std::int32_t worker = servers; worker < ranks.size(); ++worker) arriving_.push_back(torch::zeros_like(mine));
  }

  void end_backward(std::size_t, bool) override {}
  void finish() override {
    std::vector<Pending> work;
    for (std::int32_t worker = servers_; worker < ranks_.size(); ++worker) {
      work.push_back(ranks_.start_receive(arriving_[static_cast<std::size_t>(worker - servers_)], worker));
    }
    shards_[0].gradients.zero_();
    for (std::size_t i = 0; i < work.size(); ++i) {  // in rank order, so that the result has the same bits in every run
      work[i].wait();
      shards_[0].gradients.add_(arriving_[i]);
    }
  }
  void publish() override {
    std::vector<Pending> work;
    for (std::int32_t worker = servers_; worker < ranks_.size(); ++worker) {
      work.push_back(ranks_.start_send(shards_[0].values, worker));
    }
    for (Pending& one : work) one.wait();
  }
  bool replicated() const override { return false; }
  bool computes() const override { return false; }
  std::int64_t held_bytes() const override {
    return (2 + static_cast<std::int64_t>(arriving_.size())) * shards_[0].values.nbytes();
  }

 private:
  Comm& ranks_;
  std::int32_t servers_;
  std::vector<Tensor> arriving_;
};

// A worker: it holds all values, sends each part of the gradients to the server of that part, and receives the new
// values.
class Worker final : public BaseReplicas {
 public:
  Worker(const Layers& layers, Comm& ranks, std::int32_t servers, const ReplicaOptions& options)
      : layers_(layers),
        ranks_(ranks),
        servers_(servers),
        bucket_(make_buckets(layers, options.first_layer, INT64_MAX, servers).at(0)),
        values_(torch::zeros({bucket_.padded}, torch::TensorOptions(torch::kFloat32).device(options.device))),
        gradients_(torch::zeros_like(values_)) {
    move_values(layers, bucket_, values_);
    ranks.broadcast(values_, 0);
    bind_gradients(layers, bucket_, gradients_);
  }
  ~Worker() override { forget_gradients(layers_, bucket_); }

  void begin_step() override { gradients_.zero_(); }
  void end_backward(std::size_t, bool) override {}
  void finish() override {
    with_servers([&](std::int32_t server) { return ranks_.start_send(part(gradients_, server), server); });
  }
  void publish() override {
    with_servers([&](std::int32_t server) { return ranks_.start_receive(part(values_, server), server); });
  }
  bool replicated() const override { return false; }
  std::int64_t held_bytes() const override { return 2 * values_.nbytes(); }

 private:
  Tensor part(const Tensor& flat, std::int32_t server) const {
    const std::int64_t length = bucket_.padded / servers_;
    return flat.narrow(0, server * length, length);
  }
  template <class Start>
  void with_servers(const Start& start) {
    std::vector<Pending> work;
    for (std::int32_t server = 0; server < servers_; ++server) work.push_back(start(server));
    for (Pending& one : work) one.wait();
  }

  const Layers& layers_;
  Comm& ranks_;
  std::int32_t servers_;
  Bucket bucket_;
  Tensor values_;
  Tensor gradients_;
};

}  // namespace

std::unique_ptr<Replicas> make_parameter_server(const Layers& layers, Comm& ranks, std::int32_t servers,
                                                const ReplicaOptions& options) {
  if (ranks.rank() < servers) return std::make_unique<Server>(layers, ranks, servers, options);
  return std::make_unique<Worker>(layers, ranks, servers, options);
}

}  // namespace tutti::train
