// Memory, devices, streams, and copies that are done late.
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/ops/empty.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/alloc_cpu.h>
#include <torch/csrc/utils/pybind.h>

#include <map>
#include <mutex>
#include <string_view>

#include "pretend.h"

namespace pretend {
thread_local DeviceIndex current = 0;

namespace {
std::mutex lock;  // of all below; never held while a tensor is copied or Python is called
PyObject* hook = nullptr;

int devices() {
  static int count = std::getenv("PRETEND_DEVICES") ? atoi(std::getenv("PRETEND_DEVICES")) : 2;
  return count;
}
}  // namespace

void waits(const char* kind, const std::string& operation, int64_t bytes) {
  if (!hook) return;
  py::gil_scoped_acquire gil;
  if (hook) py::reinterpret_borrow<py::object>(hook)(kind, operation, bytes);
}

// late copies -------------------------------------------------------------------------------------

namespace {
thread_local std::map<DeviceIndex, c10::StreamId> streams;
c10::StreamId current_stream() { return streams[current]; }

struct ToDevice {
  Tensor from, to;
  Storage storage;
  size_t digest;  // of `from` when the copy was asked for
  c10::StreamId stream;
  int64_t number;
  bool arrived = false;
};
struct ToHost {
  Tensor from, to;
};
std::vector<ToDevice> to_device;
std::vector<ToHost> to_host;
int64_t asked = 0;  // copies to a device
// by stream, and another that it waited for: the last copy that the other was asked for till then
std::map<std::pair<c10::StreamId, c10::StreamId>, int64_t> waited;

size_t digest(const Tensor& t) {
  return std::hash<std::string_view>()({(const char*)t.const_data_ptr(), t.nbytes()});
}

bool overlap(const Tensor& a, const Tensor& b) {
  auto *p = (const char*)a.const_data_ptr(), *q = (const char*)b.const_data_ptr();
  return p < q + b.nbytes() && q < p + a.nbytes();
}

// Take out those that a test holds for, in their order.
template <class Late, class Test>
std::vector<Late> taken(std::vector<Late>& from, Test test) {
  std::vector<Late> out, rest;
  std::lock_guard<std::mutex> guard(lock);
  for (auto& late : from) (test(late) ? out : rest).push_back(std::move(late));
  from.swap(rest);
  return out;
}

void land(const std::vector<ToHost>& copies) {
  for (auto& late : copies) late.to.copy_(late.from);
}

void depart(const std::vector<ToDevice>& copies) {
  bool written = false;
  for (auto& late : copies) {
    written |= digest(late.from) != late.digest;
    if (!late.arrived) late.to.copy_(late.from);
  }
  TORCH_CHECK(!written, "pretend: host memory was written while a copy from it was under way");
}
}  // namespace

// A stream copies in order: what comes to memory that it copies from later, comes first; and what
// goes from memory that it copies to later, went before.
void copy_to_device_later(const Tensor& from, const Tensor& to, const Storage& device_storage) {
  land(taken(to_host, [&](const ToHost& late) { return overlap(late.to, from); }));
  ToDevice late{from, to, device_storage, digest(from), current_stream()};
  std::lock_guard<std::mutex> guard(lock);
  late.number = ++asked;
  to_device.push_back(std::move(late));
}

void copy_to_host_later(const Tensor& from, const Tensor& to) {
  auto kept = from.clone();
  depart(taken(to_device, [&](const ToDevice& late) { return overlap(late.from, to); }));
  memset(to.mutable_data_ptr(), UNWRITTEN, to.nbytes());
  std::lock_guard<std::mutex> guard(lock);
  to_host.push_back({kept, to});
}

void arrive(const c10::StorageImpl* storage) {
  std::vector<std::pair<Tensor, Tensor>> now;
  bool early = false;
  {
    auto here = current_stream();
    std::lock_guard<std::mutex> guard(lock);
    for (auto& late : to_device)
      if (!late.arrived && late.storage.unsafeGetStorageImpl() == storage) {
        early |= late.stream != here && waited[{here, late.stream}] < late.number;
        late.arrived = true;
        now.emplace_back(late.to, late.from);
      }
  }
  for (auto& [to, from] : now) to.copy_(from);
  TORCH_CHECK(!early, "pretend: used by a stream that did not wait for its copy");
}

void finish() {
  at::AutoDispatchBelowADInplaceOrView below;
  auto all = [](const auto&) { return true; };
  auto going = taken(to_device, all);
  land(taken(to_host, all));
  depart(going);
}

// memory ------------------------------------------------------------------------------------------

namespace {
std::map<DeviceIndex, int64_t> used, peak;
struct Block {
  void* p;  // null: `host` owns it
  size_t bytes;
  DeviceIndex device;
  Storage host;
};
void release(void* context) {
  auto* block = (Block*)context;
  {
    std::lock_guard<std::mutex> guard(lock);
    used[block->device] -= block->bytes;
  }
  if (block->p) c10::free_cpu(block->p);
  delete block;
}

struct DeviceAllocator final : c10::Allocator {
  DataPtr allocate(size_t bytes) override {
    void* p = bytes ? c10::alloc_cpu(bytes) : nullptr;
    // DeepSpeed asks for gigabytes that it does not use
    if (p) memset(p, UNWRITTEN, std::min<size_t>(bytes, 16 << 20));
    return device_memory(p, bytes, current);
  }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    memcpy(untagged(to), untagged(from), bytes);
  }
} allocator;

std::map<uintptr_t, size_t> pinned;
void unpin(void* p) {
  {
    std::lock_guard<std::mutex> guard(lock);
    pinned.erase((uintptr_t)p);
  }
  c10::free_cpu(p);
}
struct PinnedAllocator final : c10::Allocator {
  DataPtr allocate(size_t bytes) override {
    if (!bytes) return {nullptr, nullptr, &c10::detail::deleteNothing, Device(c10::kCPU)};
    void* p = c10::alloc_cpu(bytes);
    std::lock_guard<std::mutex> guard(lock);
    pinned[(uintptr_t)p] = bytes;
    return {p, p, &unpin, Device(c10::kCPU)};
  }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    memcpy(to, from, bytes);
  }
} pinned_allocator;
}  // namespace

DataPtr device_memory(void* p, size_t bytes, DeviceIndex device, Storage host) {
  {
    std::lock_guard<std::mutex> guard(lock);
    used[device] += bytes;
    peak[device] = std::max(peak[device], used[device]);
  }
  return {tagged(p), new Block{host ? nullptr : p, bytes, device, host}, &release,
          Device(KIND, device)};
}

c10::Allocator* device_allocator() { return &allocator; }

void resize_bytes(c10::StorageImpl* storage, size_t bytes) {
  arrive(storage);
  c10::DeviceGuard guard(storage->device());
  auto fresh = allocator.allocate(bytes);
  if (auto kept = std::min(bytes, storage->nbytes()))
    memcpy(untagged(fresh.get()), untagged(storage->data()), kept);
  storage->set_data_ptr_noswap(std::move(fresh));
  storage->set_nbytes(bytes);
}

bool is_pinned(const void* p) {
  std::lock_guard<std::mutex> guard(lock);
  auto after = pinned.upper_bound((uintptr_t)p);
  return after != pinned.begin() && (--after, (uintptr_t)p < after->first + after->second);
}

const at::Generator& default_generator(DeviceIndex index) {
  static std::vector<at::Generator> all = [] {
    std::vector<at::Generator> made;
    for (int i = 0; i < devices(); i++)
      made.push_back(at::make_generator<Generator>(i, at::detail::createCPUGenerator()));
    return made;
  }();
  return all.at(index < 0 ? current : index);
}

// devices, streams, events: kernels run when they are called --------------------------------------

namespace {
DeviceIndex index_of(Device device) { return device.has_index() ? device.index() : current; }

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return KIND; }
  Device exchangeDevice(Device device) const override {
    auto old = getDevice();
    setDevice(device);
    return old;
  }
  Device getDevice() const override { return Device(KIND, current); }
  void setDevice(Device device) const override {
    auto index = int(device.index());
    TORCH_CHECK(index < devices(), "pretend: there is no device ", index);
    uncheckedSetDevice(device);
  }
  void uncheckedSetDevice(Device device) const noexcept override { current = index_of(device); }
  static c10::Stream stream(Device device, c10::StreamId id) {
    return c10::Stream(c10::Stream::UNSAFE, Device(KIND, index_of(device)), id);
  }
  c10::Stream getStream(Device device) const override {
    return stream(device, streams[index_of(device)]);
  }
  c10::Stream getDefaultStream(Device device) const override { return stream(device, 0); }
  c10::Stream getNewStream(Device device, int) const override {
    static std::atomic<int> id{0};
    return stream(device, ++id);
  }
  c10::Stream getStreamFromGlobalPool(Device device, bool) const override {
    return getNewStream(device, 0);
  }
  c10::Stream exchangeStream(c10::Stream s) const override {
    auto old = getStream(s.device());
    streams[s.device_index()] = s.id();
    return old;
  }
  // an event is a stream, and how many copies had been asked for
  void record(void** event, const c10::Stream& s, DeviceIndex, c10::EventFlag) const override {
    std::lock_guard<std::mutex> guard(lock);
    *event = (void*)(s.id() << 40 | (asked + 1));
  }
  void block(void* event, const c10::Stream& s) const override {
    std::lock_guard<std::mutex> guard(lock);
    auto& last = waited[{s.id(), int64_t(event) >> 40}];
    last = std::max(last, (int64_t(event) & ((int64_t(1) << 40) - 1)) - 1);
  }
  bool queryEvent(void*) const override { return finish(), true; }
  bool queryStream(const c10::Stream&) const override { return finish(), true; }
  void synchronizeStream(const c10::Stream&) const override { synchronize("stream"); }
  void synchronizeEvent(void*) const override { synchronize("event"); }
  void synchronizeDevice(DeviceIndex) const override { synchronize("device"); }
  static void synchronize(const char* what) {
    waits("synchronize", what, 0);
    finish();
  }
  double elapsedTime(void*, void*, DeviceIndex) const override { return 0.001; }
  DeviceIndex deviceCount() const noexcept override { return devices(); }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  DeviceIndex deviceCount() const override { return devices(); }
  void setCurrentDevice(DeviceIndex i) const override { Guard().setDevice(Device(KIND, i)); }
  DeviceIndex getCurrentDevice() const override { return current; }
  DeviceIndex exchangeDevice(DeviceIndex i) const override { return std::exchange(current, i); }
  DeviceIndex maybeExchangeDevice(DeviceIndex i) const override {
    return i < 0 ? current : std::exchange(current, i);
  }
  const at::Generator& getDefaultGenerator(DeviceIndex i) const override {
    return default_generator(i);
  }
  at::Generator getNewGenerator(DeviceIndex i) const override {
    auto cpu = at::detail::createCPUGenerator();
    return at::make_generator<Generator>(i < 0 ? current : i, std::move(cpu));
  }
  Device getDeviceFromPtr(void*) const override { return Device(KIND, current); }
  bool isPinnedPtr(const void* p) const override { return is_pinned(p); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &pinned_allocator; }
  void resizePrivateUse1Bytes(const Storage& storage, size_t bytes) const override {
    resize_bytes(storage.unsafeGetStorageImpl(), bytes);
  }
};
}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  c10::SetAllocator(KIND, &allocator);
  at::RegisterPrivateUse1HooksInterface(new Hooks());
  m.def("set_hook", [](py::object f) {
    Py_XDECREF(hook);
    hook = f.is_none() ? nullptr : f.release().ptr();
  });
  m.def("on_host", &on_host);
  m.def("device_count", &devices);
  m.def("current_device", [] { return int(current); });
  m.def("set_device", [](int i) { Guard().setDevice(Device(KIND, i)); });
  m.def("finish", [] {
    py::gil_scoped_release release;
    finish();
  });
  m.def("synchronize", [] {
    py::gil_scoped_release release;
    Guard::synchronize("device");
  });
  m.def("generator", [](int i) { return default_generator(i); });
  m.def("memory", [](int i) {
    std::lock_guard<std::mutex> guard(lock);
    return std::make_pair(used[i], peak[i]);
  });
  m.def("reset_peak", [](int i) {
    std::lock_guard<std::mutex> guard(lock);
    peak[i] = used[i];
  });
}
}  // namespace pretend
