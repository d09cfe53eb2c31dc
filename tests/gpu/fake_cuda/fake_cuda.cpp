// Two "cuda" devices for a torch that was built for the CPU, so that what tensordiff does on GPUs can be tested without one.
// FAKE_CUDA_DEVICES is another number of them, up to four.
//
// Device memory is host memory, and kernels are the CPU's, reached by torch's own fallback. What is asynchronous on a GPU is
// as late here as it can be: a non-blocking copy into pinned memory arrives only when its stream is waited for, or an event
// that was recorded on that stream after it. Until then the host reads 0xFF bytes. Kernels refuse tensors of two devices.
// Memory of each device ends at a limit, freed memory is overwritten, and peaks are counted.
//
// Not modelled: the order of kernels on different streams (all run at once, when they are called), a GPU's own numerics.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/CachingHostAllocator.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>

namespace {

using c10::DeviceIndex;
using c10::StreamId;

constexpr int kMostDevices = 4;
const int kDevices = std::getenv("FAKE_CUDA_DEVICES") ? std::min(std::atoi(std::getenv("FAKE_CUDA_DEVICES")), kMostDevices) : 2;
constexpr int kUnwritten = 0xFF;

thread_local DeviceIndex current_device = 0;
thread_local StreamId current_stream[kMostDevices] = {};
thread_local bool in_kernel = false;  // the fallback copies tensors to the CPU and back, which is no copy of the program's

std::recursive_mutex mutex;
using Lock = std::lock_guard<std::recursive_mutex>;

// ---------------------------------------------------------------------------------------------------------------- memory

struct Meter {
  int64_t used = 0, peak = 0, limit = INT64_MAX;

  bool has_room(int64_t nbytes) const { return used + nbytes <= limit; }
  void add(int64_t nbytes) { peak = std::max(peak, used += nbytes); }
};

struct Block {
  size_t nbytes;
  DeviceIndex device;
};

Meter device_meter[kMostDevices], pinned_meter;
std::map<char*, Block> device_blocks, pinned_blocks;

bool lies_in(const std::map<char*, Block>& blocks, const void* data) {
  Lock lock(mutex);
  auto after = blocks.upper_bound((char*)data);
  if (after == blocks.begin()) return false;
  const auto& [begin, block] = *std::prev(after);
  return (char*)data < begin + block.nbytes;
}

// ----------------------------------------------------------------------------------------- copies on their way to the host

struct LateCopy {
  uint64_t ticket;
  char* destination;
  std::vector<char> bytes;
};

std::map<std::pair<int, StreamId>, std::deque<LateCopy>> late_copies;  // by device and stream
uint64_t last_ticket = 0;
int64_t bytes_to_host = 0;  // all that ever went from a device to the host, however

void finish_copies(int device, StreamId stream, uint64_t last) {
  Lock lock(mutex);
  auto& queue = late_copies[{device, stream}];
  for (; !queue.empty() && queue.front().ticket <= last; queue.pop_front())
    std::memcpy(queue.front().destination, queue.front().bytes.data(), queue.front().bytes.size());
}

void finish_all_copies(int device) {
  Lock lock(mutex);
  for (auto& [key, queue] : late_copies)
    if (key.first == device) finish_copies(key.first, key.second, last_ticket);
}

void wait_for_current_stream(int device) {
  if (!in_kernel) finish_copies(device, current_stream[device], last_ticket);
}

void forget_copies_into(char* begin, char* end) {
  for (auto& [key, queue] : late_copies)
    std::erase_if(queue, [&](const LateCopy& copy) { return copy.destination >= begin && copy.destination < end; });
}

// -------------------------------------------------------------------------------------------------------------- allocators

void free_on_device(void* data) {
  Lock lock(mutex);
  auto found = device_blocks.find((char*)data);
  if (found == device_blocks.end()) return;
  std::memset(data, kUnwritten, found->second.nbytes);  // whoever still reads it is found out
  device_meter[found->second.device].used -= (int64_t)found->second.nbytes;
  device_blocks.erase(found);
  std::free(data);
}

void free_pinned(void* data) {
  Lock lock(mutex);
  auto found = pinned_blocks.find((char*)data);
  if (found == pinned_blocks.end()) return;
  forget_copies_into(found->first, found->first + found->second.nbytes);
  pinned_meter.used -= (int64_t)found->second.nbytes;
  pinned_blocks.erase(found);
  std::free(data);
}

void* allocate_block(std::map<char*, Block>& blocks, Meter& meter, size_t nbytes, DeviceIndex device) {
  auto* data = (char*)std::aligned_alloc(64, (nbytes + 63) / 64 * 64);
  std::memset(data, kUnwritten, nbytes);
  blocks[data] = {nbytes, device};
  meter.add((int64_t)nbytes);
  return data;
}

struct DeviceAllocator final : c10::DeviceAllocator {
  c10::DataPtr allocate(size_t nbytes) override {
    const c10::Device device(c10::kCUDA, current_device);
    if (nbytes == 0) return {nullptr, nullptr, &free_on_device, device};
    Lock lock(mutex);
    auto& meter = device_meter[current_device];
    TORCH_CHECK_WITH(
        OutOfMemoryError, meter.has_room((int64_t)nbytes), "CUDA out of memory. Tried to allocate ", nbytes,
        " bytes. GPU ", (int)current_device, " has a total capacity of ", meter.limit, " bytes of which ",
        meter.limit - meter.used, " bytes is free.");
    void* data = allocate_block(device_blocks, meter, nbytes, current_device);
    return {data, data, &free_on_device, device};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_on_device; }
  void copy_data(void* to, const void* from, size_t nbytes) const override { std::memcpy(to, from, nbytes); }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t = {0, 0}) override {}
  void recordStream(const c10::DataPtr&, c10::Stream) override {}
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(DeviceIndex) override { return {}; }
  void resetAccumulatedStats(DeviceIndex) override {}
  void resetPeakStats(DeviceIndex device) override { device_meter[device].peak = device_meter[device].used; }
  std::pair<size_t, size_t> getMemoryInfo(DeviceIndex device) override {
    const auto& meter = device_meter[device];
    return {meter.limit - meter.used, meter.limit};
  }
} device_allocator;

struct PinnedAllocator final : at::HostAllocator {
  c10::DataPtr allocate(size_t nbytes) override {
    if (nbytes == 0) return {nullptr, nullptr, &free_pinned, at::kCPU};
    Lock lock(mutex);
    TORCH_CHECK(pinned_meter.has_room((int64_t)nbytes), "CUDA error: out of memory (pinned host memory)");
    void* data = allocate_block(pinned_blocks, pinned_meter, nbytes, -1);
    return {data, data, &free_pinned, at::kCPU};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_pinned; }
  void copy_data(void* to, const void* from, size_t nbytes) const override { std::memcpy(to, from, nbytes); }
  bool record_event(void*, void*, c10::Stream) override { return true; }
  void empty_cache() override {}
  at::HostStats get_stats() override { return {}; }
  void reset_accumulated_stats() override {}
  void reset_peak_stats() override { pinned_meter.peak = pinned_meter.used; }
} pinned_allocator;

struct RegisterAllocators {
  RegisterAllocators() {
    c10::SetAllocator(c10::kCUDA, &device_allocator);
    at::setHostAllocator(at::kCUDA, &pinned_allocator);
  }
} register_allocators;

// ------------------------------------------------------------------------------------------------------ devices and streams

struct DeviceGuard final : c10::impl::DeviceGuardImplInterface {
  static DeviceIndex index_of(c10::Device device) { return device.has_index() ? device.index() : current_device; }

  c10::DeviceType type() const override { return c10::kCUDA; }
  c10::Device getDevice() const override { return {c10::kCUDA, current_device}; }
  void setDevice(c10::Device device) const override {
    TORCH_CHECK(index_of(device) < kDevices, "CUDA error: invalid device ordinal");
    current_device = index_of(device);
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override { current_device = index_of(device); }
  c10::Device exchangeDevice(c10::Device device) const override {
    auto before = getDevice();
    setDevice(device);
    return before;
  }
  c10::Stream getStream(c10::Device device) const override {
    const auto index = index_of(device);
    return c10::Stream(c10::Stream::UNSAFE, {c10::kCUDA, index}, current_stream[index]);
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::UNSAFE, {c10::kCUDA, index_of(device)}, 0);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    auto before = getStream(stream.device());
    current_stream[index_of(stream.device())] = stream.id();
    return before;
  }
  DeviceIndex deviceCount() const noexcept override { return kDevices; }
  void synchronizeStream(const c10::Stream& stream) const override {
    finish_copies(stream.device_index(), stream.id(), last_ticket);
  }
  void synchronizeDevice(const DeviceIndex device) const override { finish_all_copies(device); }
  bool queryStream(const c10::Stream& stream) const override {
    Lock lock(mutex);
    return late_copies[{stream.device_index(), stream.id()}].empty();
  }
  // A backward over two devices has one wait for the other. Kernels run when they are called, so it need not.
  void record(void**, const c10::Stream&, const DeviceIndex, const c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
};
C10_REGISTER_GUARD_IMPL(CUDA, DeviceGuard);

struct CUDAHooks final : at::CUDAHooksInterface {
  explicit CUDAHooks(at::CUDAHooksArgs) {}
  void init() const override {}
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasCUDA() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  bool isPinnedPtr(const void* data) const override { return lies_in(pinned_blocks, data); }
  at::Allocator* getPinnedMemoryAllocator() const override { return &pinned_allocator; }
  at::Allocator* getCUDADeviceAllocator() const override { return &device_allocator; }
  DeviceIndex current_device() const override { return ::current_device; }
  DeviceIndex getCurrentDevice() const override { return ::current_device; }
  void setCurrentDevice(DeviceIndex device) const override { ::current_device = device; }
  DeviceIndex exchangeDevice(DeviceIndex device) const override { return std::exchange(::current_device, device); }
  DeviceIndex maybeExchangeDevice(DeviceIndex device) const override {
    return device < 0 ? ::current_device : std::exchange(::current_device, device);
  }
  DeviceIndex deviceCount() const override { return kDevices; }
  int getNumGPUs() const override { return kDevices; }
  at::Device getDeviceFromPtr(void* data) const override {
    Lock lock(mutex);
    TORCH_CHECK(lies_in(device_blocks, data), "not memory of a device");
    return {c10::kCUDA, std::prev(device_blocks.upper_bound((char*)data))->second.device};
  }
  void deviceSynchronize(DeviceIndex device) const override { finish_all_copies(device); }
  const at::Generator& getDefaultGenerator(DeviceIndex = -1) const override {
    return at::detail::getDefaultCPUGenerator();
  }
  at::Generator getNewGenerator(DeviceIndex = -1) const override { return at::detail::createCPUGenerator(); }
};
}  // namespace

namespace at {
REGISTER_CUDA_HOOKS(CUDAHooks)
}

namespace {

// ----------------------------------------------------------------------------------------------------------------- tensors

// The same memory as a tensor of the CPU.
at::Tensor seen_by_cpu(const at::Tensor& tensor) {
  if (!tensor.is_cuda()) return tensor;
  const auto& storage = tensor.storage();
  char* data = storage.nbytes() ? (char*)storage.mutable_data() + tensor.storage_offset() * tensor.itemsize() : nullptr;
  const auto options = tensor.options().device(at::kCPU).requires_grad(false);
  auto view = at::from_blob(data, tensor.sizes(), tensor.strides(), options);
  if (tensor.is_conj()) view._set_conj(true);
  if (tensor.is_neg()) view._set_neg(true);
  return view;
}

at::Tensor empty(
    c10::IntArrayRef sizes, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
    std::optional<at::Device> device, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  const c10::DeviceGuard guard(c10::device_or_default(device));
  const c10::DispatchKeySet keys(c10::DispatchKey::CUDA);
  return at::detail::empty_generic(sizes, &device_allocator, keys, c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(
    c10::IntArrayRef sizes, c10::IntArrayRef strides, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
    std::optional<at::Device> device, std::optional<bool>) {
  const c10::DeviceGuard guard(c10::device_or_default(device));
  const c10::DispatchKeySet keys(c10::DispatchKey::CUDA);
  return at::detail::empty_strided_generic(sizes, strides, &device_allocator, keys, c10::dtype_or_default(dtype));
}

void copy_late(at::Tensor& destination, const at::Tensor& source) {
  const auto values = seen_by_cpu(source).expand_as(destination).contiguous().resolve_conj().resolve_neg();
  const auto* begin = (const char*)values.const_data_ptr();
  const auto device = source.device().index();
  Lock lock(mutex);
  auto* to = (char*)destination.mutable_data_ptr();
  std::memset(to, kUnwritten, destination.nbytes());
  late_copies[{device, current_stream[device]}].push_back({++last_ticket, to, {begin, begin + values.nbytes()}});
}

at::Tensor& copy_(at::Tensor& destination, const at::Tensor& source, bool non_blocking) {
  if (destination.numel() == 0) return destination;
  const bool to_host = source.is_cuda() && destination.is_cpu();
  if (to_host && !in_kernel) {
    Lock lock(mutex);
    bytes_to_host += (int64_t)destination.nbytes();
  }
  if (non_blocking && to_host && destination.is_contiguous() && destination.dtype() == source.dtype() &&
      lies_in(pinned_blocks, destination.data_ptr())) {
    copy_late(destination, source);
    return destination;
  }
  if (to_host || !non_blocking)
    wait_for_current_stream(source.is_cuda() ? source.device().index() : destination.device().index());
  seen_by_cpu(destination).copy_(seen_by_cpu(source));
  return destination;
}

at::Tensor copy_from(const at::Tensor& source, const at::Tensor& destination, bool non_blocking) {
  auto to = destination;
  return copy_(to, source, non_blocking);
}

at::Tensor copy_from_and_resize(const at::Tensor& source, const at::Tensor& destination) {
  auto to = destination;
  if (to.sizes() != source.sizes()) to.resize_(source.sizes());
  return copy_(to, source, false);
}

const at::Tensor& resize_(const at::Tensor& self, c10::IntArrayRef sizes, std::optional<at::MemoryFormat> format) {
  const c10::DeviceGuard guard(self.device());
  return at::native::resize_(self, sizes, format);
}

at::Scalar item(const at::Tensor& self) {
  wait_for_current_stream(self.device().index());
  bytes_to_host += self.itemsize();
  return seen_by_cpu(self).item();
}

// The CPU's histc takes no integers; models ask a GPU for just that.
at::Tensor histc(const at::Tensor& self, int64_t bins, const at::Scalar& low, const at::Scalar& high) {
  return seen_by_cpu(self).to(at::kDouble).histc(bins, low, high).to(self.options());
}

// ----------------------------------------------------------------------------------------------------------------- kernels

// Only x[i] takes indices from the CPU; index_select, which an embedding is, index_add and the like refuse them.
bool may_mix_devices(const std::string& name) {
  return name == "aten::index" || name.starts_with("aten::index_put") || name.starts_with("aten::_index_put") ||
      name == "aten::set_" || name == "aten::_to_copy" || name == "aten::_copy_from_and_resize";
}

void refuse_mixed_devices(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  const auto& name = op.schema().operator_name().name;
  if (may_mix_devices(name)) return;
  std::optional<at::Device> first;
  auto check = [&](const at::Tensor& tensor) {
    if (!tensor.defined() || tensor.dim() == 0 || tensor.is_meta()) return;  // numbers may come from anywhere
    if (!first) first = tensor.device();
    TORCH_CHECK(
        *first == tensor.device(), "Expected all tensors to be on the same device, but found at least two devices, ",
        *first, " and ", tensor.device(), "! (when checking arguments of ", name, ")");
  };
  for (const auto& argument : torch::jit::last(stack, op.schema().arguments().size())) {
    if (argument.isTensor()) check(argument.toTensor());
    if (argument.isTensorList())
      for (const at::Tensor& tensor : argument.toTensorVector()) check(tensor);
  }
}

void run_on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  refuse_mixed_devices(op, *stack);
  struct InKernel {
    bool before = std::exchange(in_kernel, true);
    ~InKernel() { in_kernel = before; }
  } in_this_kernel;
  at::native::cpu_fallback(op, stack);
}

TORCH_LIBRARY_IMPL(_, CUDA, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_cpu>()); }

TORCH_LIBRARY_IMPL(aten, CUDA, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("copy_", &copy_);
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
  m.impl("_local_scalar_dense", &item);
  m.impl("resize_", &resize_);
  m.impl("histc", &histc);
  m.impl("as_strided", TORCH_FN(at::native::as_strided_tensorimpl));
  m.impl("view", TORCH_FN(at::native::view));
  m.impl("_reshape_alias", TORCH_FN(at::native::_reshape_alias));
  m.impl("unfold", TORCH_FN(at::native::unfold));
  m.impl("view_as_real", TORCH_FN(at::native::view_as_real));
  m.impl("view_as_complex", TORCH_FN(at::native::view_as_complex));
  m.impl("set_.source_Tensor", TORCH_FN(at::native::set_tensor_));
  m.impl("set_.source_Storage", static_cast<at::Tensor& (*)(at::Tensor&, at::Storage)>(&at::native::set_));
  m.impl("set_.source_Storage_storage_offset", TORCH_FN(at::native::set_storage_cpu_));
  // torch would look for these operations' CUDA kernels without asking for a fallback, or put them together from others.
  for (const auto* name : {"scaled_dot_product_attention", "native_layer_norm", "native_group_norm", "_fused_rms_norm"})
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&run_on_cpu>());
}

}  // namespace

// ------------------------------------------------------------------------------------------- for the Python module beside it

extern "C" {
int fake_cuda_device_count() { return kDevices; }
int fake_cuda_current_device() { return current_device; }
void fake_cuda_set_device(int device) { current_device = (DeviceIndex)device; }
int64_t fake_cuda_current_stream(int device) { return current_stream[device]; }
void fake_cuda_set_stream(int device, int64_t stream) { current_stream[device] = stream; }
uint64_t fake_cuda_last_ticket() {
  Lock lock(mutex);
  return last_ticket;
}
void fake_cuda_finish_copies(int device, int64_t stream, uint64_t last) { finish_copies(device, stream, last); }
void fake_cuda_finish_all_copies(int device) { finish_all_copies(device); }
int64_t fake_cuda_late_copies() {
  Lock lock(mutex);
  int64_t count = 0;
  for (auto& [key, queue] : late_copies) count += (int64_t)queue.size();
  return count;
}
int64_t fake_cuda_bytes_to_host() { return bytes_to_host; }
void fake_cuda_set_limits(int64_t device_bytes, int64_t pinned_bytes) {
  for (auto& meter : device_meter) meter.limit = device_bytes;
  pinned_meter.limit = pinned_bytes;
}
int64_t fake_cuda_limit(int device) { return device_meter[device].limit; }
int64_t fake_cuda_used(int device) { return device_meter[device].used; }
int64_t fake_cuda_peak(int device) { return device_meter[device].peak; }
int64_t fake_cuda_pinned_used() { return pinned_meter.used; }
int64_t fake_cuda_pinned_peak() { return pinned_meter.peak; }
}
