#include "train/checkpoint.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <system_error>

#include "train/checkpoint_file.h"

namespace tutti::train {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr std::size_t kKeptCheckpoints = 2;
constexpr char kManifest[] = "manifest.json";

std::string part_name(std::int64_t rank) { return fmt::format("rank-{}.part", rank); }
std::string model_text(const ModelConfig& model) {
  return fmt::format("{} (width {}, blocks {})", model.name, model.width, model.blocks);
}

// The step number if the last part of `path` is a name such as "step-00000938", or nullopt if it is another name.
std::optional<std::int64_t> step_of(const fs::path& path) {
  const std::string name = path.filename();
  constexpr std::string_view kStart = "step-";
  std::int64_t step = 0;
  const char* const end = name.data() + name.size();
  if (!name.starts_with(kStart) || name.size() < kStart.size() + 8) return std::nullopt;
  const auto [last, wrong] = std::from_chars(name.data() + kStart.size(), end, step);
  return wrong == std::errc() && last == end ? std::optional(step) : std::nullopt;
}

// The entries of `folder` that are named like checkpoints, the one with the highest step number first.
std::vector<fs::path> checkpoints_in(const std::string& folder) {
  std::vector<fs::path> found;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    if (step_of(entry.path())) found.push_back(entry.path());
  }
  std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return *step_of(a) > *step_of(b); });
  return found;
}

// A text that identifies the training samples and their order. The sampler derives the order from batch size, number
// of samples and seed. The CRC-32 distinguishes data sets of the same length. A training can resume only from a
// checkpoint with the same text, because its remaining steps would otherwise use other samples.
std::string batches_text(const TrainOptions& options, Learner& learner) {
  return fmt::format("{} of {} samples by seed {}, CRC-32 {:08x}", options.batch, learner.samples(), options.seed,
                     learner.samples_crc());
}

// Whether this rank writes its shards. If several data-parallel ranks hold the same shards, only the first of them
// does. (Of the tensor-parallel ranks, slices_to_store() selects one.)
bool keeps_shards(const TrainOptions& options, Mesh& mesh, Learner& learner) {
  if (learner.replicas().replicated()) return mesh.data.rank() == 0;
  return options.strategy != Strategy::kMics || mesh.across.rank() == 0;
}

// The slices that this rank writes. Together the ranks write each slice once: if several ranks hold the same slice,
// only the first of them writes it.
std::vector<StoredSlice> slices_to_store(const TrainOptions& options, Mesh& mesh, Learner& learner) {
  std::vector<StoredSlice> slices;
  const auto store = [&](const ParameterSlice& slice, const char* kind, const Tensor& flat) {
    slices.push_back({.slice = slice,
                      .split_index = slice.split_dim < 0 ? 0 : mesh.tensor.rank(),
                      .kind = kind,
                      .elements = flat.narrow(0, slice.at, slice.length).to(torch::kCPU)});
  };
  auto& shards = learner.shards();
  for (std::size_t i = 0; i < shards.size() && keeps_shards(options, mesh, learner); ++i) {
    for (const ParameterSlice& slice : shards[i].slices) {
      if (slice.split_dim < 0 && mesh.tensor.rank() != 0) continue;
      store(slice, "value", shards[i].values);
      const auto& moments = learner.optimizer().state()[i];
      for (std::size_t m = 0; m < moments.size(); ++m) store(slice, m == 0 ? "moment0" : "moment1", moments[m]);
    }
  }
  if (mesh.data.rank() != 0 || mesh.tensor.rank() != 0) return slices;
  for (std::size_t layer = 0; layer < learner.layers().size(); ++layer) {
    for (const auto& item : learner.layers()[layer]->named_buffers()) {
      const Tensor flat = item.value().to(torch::kFloat32).reshape({-1}).contiguous();
      const std::vector<std::int64_t> shape = item.value().sizes().vec();
      store({.name = fmt::format("layer.{}/{}", learner.first_layer() + layer, item.key()),
             .whole = shape,
             .part = shape,
             .length = flat.numel()},
            "buffer", flat);
    }
  }
  return slices;
}

// Maximum length of a text for gather_texts(), in bytes.
constexpr std::int64_t kMaxTextBytes = 400;

// Gathers one text from each rank, in rank order. Longer texts are cut after kMaxTextBytes bytes.
std::vector<std::string> gather_texts(Comm& world, const std::string& text) {
  Tensor mine = torch::zeros({kMaxTextBytes}, torch::kUInt8);
  std::copy_n(text.begin(), std::min<std::size_t>(text.size(), kMaxTextBytes), mine.data_ptr<std::uint8_t>());
  Tensor all = torch::zeros({world.size() * kMaxTextBytes}, torch::kUInt8);
  world.all_gather(mine, all);
  std::vector<std::string> texts;
  for (std::int32_t rank = 0; rank < world.size(); ++rank) {
    const char* const start = reinterpret_cast<const char*>(all.data_ptr<std::uint8_t>()) + rank * kMaxTextBytes;
    texts.emplace_back(start, ::strnlen(start, kMaxTextBytes));
  }
  return texts;
}

// Runs `work` on this rank, and then exchanges its error, if any, with all ranks of `world`. Collective. If `work` has
// failed on any rank, this function throws Failure on all ranks, with the message of the lowest such rank. So no rank
// waits in a later collective call for a rank whose `work` has failed.
template <class Work>
void run_on_all_ranks(Comm& world, const Work& work) {
  std::string error_text;
  try {
    work();
  } catch (const Failure& failure) {
    error_text = failure.error().message;
  } catch (const std::exception& error) {
    error_text = error.what();
  }
  const std::vector<std::string> all = gather_texts(world, error_text);
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].empty()) continue;
    world.fail_on_all_ranks({ErrorCode::kSystem, fmt::format("rank {}: {}", rank, all[rank])});
  }
}

void sync_folder(const fs::path& folder) {
  const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return;
  ::fsync(fd);
  ::close(fd);
}

Json manifest_of(const TrainOptions& options, Learner& learner, const Progress& progress,
                 const std::vector<FileChecksum>& checksums) {
  Json files = Json::array();
  for (const FileChecksum& checksum : checksums) files.push_back({{"bytes", checksum.bytes}, {"crc32", checksum.crc}});
  return {{"format", 2},
          {"model", model_text(options.model)},
          {"optimizer", name_of(options.optimizer)},
          {"batches", batches_text(options, learner)},
          {"strategy", name_of(options.strategy)},
          {"ranks", options.ranks},
          {"step", progress.step},
          {"best_loss", progress.best_loss},
          {"tests_without_better", progress.tests_without_better},
          {"optimizer_steps", learner.optimizer().steps()},
          {"scale", learner.scaler().scale()},
          {"good_steps", learner.scaler().good_steps()},
          {"files", files}};
}

// A complete checkpoint: its manifest, and the headers of all its files.
struct OpenedCheckpoint {
  fs::path path;
  Json manifest;
  std::vector<std::vector<StoredSlice>> files;
};

// Converts the manifest to text, and adds a last line with the CRC-32 of that text.
std::string with_checksum(const Json& manifest) {
  const std::string text = manifest.dump(1);
  return fmt::format("{}\n{:08x}\n", text, crc_of(text));
}

// Reads the manifest. Throws Failure if it cannot be read, or if its checksum in the last line is wrong, and
// Json::exception if it is not JSON.
Json read_manifest(const fs::path& path) {
  const std::string all = read_text(path);
  constexpr std::size_t kChecksumBytes = 10;  // 8 hexadecimal digits and two newlines
  const std::string text = all.substr(0, all.size() - std::min(kChecksumBytes, all.size()));
  if (all != fmt::format("{}\n{:08x}\n", text, crc_of(text))) {
    throw Failure(ErrorCode::kSystem, fmt::format("{} is damaged: its checksum is wrong", path.string()));
  }
  return Json::parse(text);
}

// Opens a checkpoint, and checks all of its files. Throws Failure if any of them is missing, unreadable or damaged.
OpenedCheckpoint open_checkpoint(const fs::path& path) {
  OpenedCheckpoint found = {path, {}, {}};
  try {
    found.manifest = read_manifest(path / kManifest);
    std::size_t rank = 0;
    for (const Json& file : found.manifest.at("files")) {
      const FileChecksum checksum = {file.at("bytes").get<std::int64_t>(), file.at("crc32").get<std::uint32_t>()};
      found.files.push_back(read_slices(path / part_name(static_cast<std::int64_t>(rank++)), checksum));
    }
  } catch (const Json::exception& error) {
    throw Failure(ErrorCode::kSystem, fmt::format("{}: its manifest is damaged: {}", path.string(), error.what()));
  }
  return found;
}

// Assembles a whole parameter, optimizer moment or buffer from the slices in all files.
Tensor assemble(const OpenedCheckpoint& found, const std::string& name, const std::string& kind,
                const std::vector<std::int64_t>& whole) {
  Tensor result = torch::zeros(whole, torch::kFloat32);
  std::map<std::int64_t, Tensor> parts;
  std::int64_t elements = 0;
  for (std::size_t file = 0; file < found.files.size(); ++file) {
    for (const StoredSlice& stored : found.files[file]) {
      const ParameterSlice& slice = stored.slice;
      if (slice.name != name || stored.kind != kind) continue;
      if (slice.whole != whole) break;
      Tensor& part = parts.try_emplace(stored.split_index, torch::zeros(slice.part, torch::kFloat32)).first->second;
      part.view({-1})
          .narrow(0, slice.begin, slice.length)
          .copy_(read_elements(found.path / part_name(static_cast<std::int64_t>(file)), stored));
      elements += slice.length;
      if (slice.split_dim < 0) result = part;
      if (slice.split_dim >= 0) {
        const std::int64_t length = slice.part.at(static_cast<std::size_t>(slice.split_dim));
        result.narrow(slice.split_dim, stored.split_index * length, length).copy_(part);
      }
    }
  }
  if (elements != result.numel()) {
    throw Failure(ErrorCode::kInvalidArgument, fmt::format("{} lacks elements of {} ({}): it belongs to another model",
                                                           found.path.string(), name, kind));
  }
  return result;
}

// The elements of `slice`, taken from `whole`: the whole parameter, or a whole moment of the optimizer.
Tensor elements_of(const Tensor& whole, const ParameterSlice& slice, std::int64_t tensor_rank) {
  Tensor part = whole;
  if (slice.split_dim >= 0) {
    const std::int64_t length = slice.part.at(static_cast<std::size_t>(slice.split_dim));
    part = whole.narrow(slice.split_dim, tensor_rank * length, length);
  }
  return part.reshape({-1}).narrow(0, slice.begin, slice.length);
}

// Throws Failure if the checkpoint was written with another model, optimizer, batch size or seed, or with other
// training samples.
void check_fits(const OpenedCheckpoint& found, const TrainOptions& options, Learner& learner) {
  const auto differs = [&](const char* what, const std::string& there, const std::string& here) {
    if (there == here) return;
    throw Failure(
        ErrorCode::kInvalidArgument,
        fmt::format(
            "{} was written with {} {}, but this training has {}: give the same, or another --checkpoint folder",
            found.path.string(), what, there, here));
  };
  differs("model", found.manifest.at("model"), model_text(options.model));
  differs("optimizer", found.manifest.at("optimizer"), name_of(options.optimizer));
  differs("batches", found.manifest.at("batches"), batches_text(options, learner));
}

// The state that was read from a checkpoint. Everything is read into temporary tensors first, and copied only when
// all reads have succeeded. So a failed read changes nothing.
struct StateCopies {
  std::vector<std::pair<Tensor, Tensor>> copies;  // destination and source
  void apply() {
    const torch::NoGradGuard no_grad;
    for (auto& [to, from] : copies) to.copy_(from);
  }
};

StateCopies read_state(const OpenedCheckpoint& found, Mesh& mesh, Learner& learner) {
  StateCopies restored;
  auto& shards = learner.shards();
  for (std::size_t i = 0; i < shards.size(); ++i) {
    const auto& moments = learner.optimizer().state()[i];
    for (const ParameterSlice& slice : shards[i].slices) {
      const auto restore = [&](const char* kind, const Tensor& flat) {
        restored.copies.emplace_back(
            flat.narrow(0, slice.at, slice.length),
            elements_of(assemble(found, slice.name, kind, slice.whole), slice, mesh.tensor.rank()));
      };
      restore("value", shards[i].values);
      for (std::size_t m = 0; m < moments.size(); ++m) restore(m == 0 ? "moment0" : "moment1", moments[m]);
    }
  }
  for (std::size_t layer = 0; layer < learner.layers().size(); ++layer) {
    for (const auto& item : learner.layers()[layer]->named_buffers()) {
      const std::string name = fmt::format("layer.{}/{}", learner.first_layer() + layer, item.key());
      restored.copies.emplace_back(item.value(), assemble(found, name, "buffer", item.value().sizes().vec()));
    }
  }
  return restored;
}

// Creates `folder` if it is missing. Removes the incomplete checkpoints (.partial) of all steps in it. Jobs that were
// killed while they wrote leave them behind.
void remove_partial(const fs::path& folder) {
  fs::create_directories(folder);
  std::vector<fs::path> left;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    const fs::path& path = entry.path();
    if (path.extension() == ".partial" && step_of(path.stem())) left.push_back(path);
  }
  for (const fs::path& path : left) fs::remove_all(path);
}

}  // namespace

void refuse_checkpoints(const std::string& folder, Mesh& mesh) {
  run_on_all_ranks(mesh.world, [&] {
    if (mesh.world.rank() != 0) return;
    const std::vector<fs::path> all = checkpoints_in(folder);
    if (all.empty()) return;
    throw Failure(ErrorCode::kInvalidArgument,
                  fmt::format("{} exists already: resume it with --resume, or give --checkpoint another folder",
                              all.front().string()));
  });
}

void check_folder(const std::string& folder) {
  const std::string file = folder + "/.tutti-can-write";
  try {
    fs::create_directories(folder);
    write_text(file, "yes\n");
    fs::remove(file);
  } catch (const std::exception& error) {
    throw Failure(ErrorCode::kInvalidArgument,
                  fmt::format("--checkpoint {}: the folder is not writable: {}", folder, error.what()));
  }
}

void save_checkpoint(const std::string& folder, const TrainOptions& options, Mesh& mesh, Learner& learner,
                     const Progress& progress) {
  const fs::path done = fs::path(folder) / fmt::format("step-{:08}", progress.step);
  const fs::path partial = done.string() + ".partial";
  const std::int32_t rank = mesh.world.rank();
  FileChecksum checksum;
  try {
    run_on_all_ranks(mesh.world, [&] {
      for (const Shard& shard : learner.shards()) {
        if (shard.values.isfinite().all().item<bool>()) continue;
        throw Failure(
            ErrorCode::kInvalidArgument,
            "a parameter is not finite: training has diverged, so no checkpoint is written. Lower --lr, give --warmup "
            "or --clip, or resume from the previous checkpoint");
      }
      if (rank == 0) remove_partial(folder);
      if (rank == 0) fs::create_directories(partial);
    });
    run_on_all_ranks(mesh.world, [&] {
      checksum = write_slices(partial / part_name(rank), slices_to_store(options, mesh, learner));
    });
    std::vector<FileChecksum> checksums;
    for (const std::string& text : gather_texts(mesh.world, fmt::format("{} {}", checksum.bytes, checksum.crc))) {
      FileChecksum other;
      std::istringstream(text) >> other.bytes >> other.crc;
      checksums.push_back(other);
    }
    run_on_all_ranks(mesh.world, [&] {
      if (rank != 0) return;
      write_text(partial / kManifest, with_checksum(manifest_of(options, learner, progress, checksums)));
      sync_folder(partial);
      fs::remove_all(done);
      fs::rename(partial, done);
      sync_folder(folder);
      const std::vector<fs::path> all = checkpoints_in(folder);
      for (std::size_t i = kKeptCheckpoints; i < all.size(); ++i) fs::remove_all(all[i]);
    });
  } catch (const Failure&) {
    std::error_code ignored;
    if (rank == 0) fs::remove_all(partial, ignored);
    throw;
  }
}

Progress load_checkpoint(const std::string& folder, const TrainOptions& options, Mesh& mesh, Learner& learner,
                         std::vector<std::string>& notes) {
  // Rank 0 selects the newest checkpoint that it can read. Every rank then checks the files again itself, because it
  // may see another state of a shared file system.
  std::string chosen;
  if (mesh.world.rank() == 0) {
    for (const fs::path& path : checkpoints_in(folder)) {
      try {
        open_checkpoint(path);
        chosen = path.filename();
        break;
      } catch (const Failure& failure) {
        notes.push_back(fmt::format("skipped a checkpoint: {}", failure.error().message));
      }
    }
  }
  chosen = gather_texts(mesh.world, chosen).front();
  if (chosen.empty()) {
    mesh.world.fail_on_all_ranks({ErrorCode::kInvalidArgument,
                                  fmt::format("there is no complete checkpoint in {}: start without --resume{}", folder,
                                              notes.empty() ? "" : fmt::format(" ({})", fmt::join(notes, "; ")))});
  }
  OpenedCheckpoint found;
  StateCopies restored;
  run_on_all_ranks(mesh.world, [&] {
    found = open_checkpoint(fs::path(folder) / chosen);
    check_fits(found, options, learner);
    restored = read_state(found, mesh, learner);
  });
  restored.apply();
  if (mesh.world.rank() == 0) {
    std::error_code ignored;
    for (const fs::path& path : checkpoints_in(folder)) {
      if (*step_of(path) > *step_of(chosen)) fs::remove_all(path, ignored);
    }
  }
  learner.optimizer().set_steps(found.manifest.at("optimizer_steps"));
  learner.scaler().restore(found.manifest.at("scale"), found.manifest.at("good_steps"));
  learner.replicas().publish();
  return {.step = found.manifest.at("step"),
          .best_loss = found.manifest.at("best_loss"),
          .tests_without_better = found.manifest.at("tests_without_better")};
}

}  // namespace tutti::train
