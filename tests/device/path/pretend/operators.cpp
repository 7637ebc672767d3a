// Operators: device tensors become the host's on the same memory, the CPU's kernel runs, and what
// it made becomes a device tensor again. What a GPU would refuse is refused.
#include <ATen/EmptyTensor.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <set>
#include <unordered_map>

#include "pretend.h"

namespace pretend {
namespace {
using Names = std::set<std::string>;

// One call of an operator.
class Call {
 public:
  Device where{KIND, current};

  // A tensor for the CPU's kernel.
  Tensor lower(const Tensor& t) {
    if (!on_device(t)) {
      if (t.defined()) own.push_back(t.unsafeGetTensorImpl());
      return t;
    }
    for (auto& pair : pairs)
      if (pair.device.is_same(t)) return pair.host;
    where = t.device();
    auto* storage = t.storage().unsafeGetStorageImpl();
    auto [found, fresh] = by_device.try_emplace(storage, held.size());
    if (fresh) {
      arrive(storage);
      void* at = untagged(storage->data());
      DataPtr data(at, Device(c10::kCPU));
      auto* allocator = c10::GetAllocator(c10::kCPU);
      Storage host({}, storage->nbytes(), std::move(data), allocator, true);
      by_host[host.unsafeGetStorageImpl()] = held.size();
      held.push_back({t.storage(), host, at});
    }
    pairs.push_back({t, make(held[found->second].host, DispatchKey::CPU, t)});
    return pairs.back().host;
  }

  // A kernel may have resized what it wrote.
  void resized() {
    for (auto& h : held) {
      auto bytes = h.host.nbytes();
      if (h.host.data() == h.at && bytes == h.device.nbytes()) continue;
      auto data = device_memory(h.host.mutable_data(), bytes, where.index(), h.host);
      h.device.unsafeGetStorageImpl()->set_data_ptr_noswap(std::move(data));
      h.device.set_nbytes(bytes);
    }
    for (auto& [device, host] : pairs)
      if (host.sizes() != device.sizes() || host.strides() != device.strides())
        device.unsafeGetTensorImpl()->set_sizes_and_strides(host.sizes(), host.strides(),
                                                            host.storage_offset());
  }

  // A result of the kernel as a device tensor.
  Tensor raise(const Tensor& r) {
    if (!r.defined() || std::count(own.begin(), own.end(), r.unsafeGetTensorImpl())) return r;
    for (auto& pair : pairs)
      if (pair.host.is_same(r)) return pair.device;
    TORCH_CHECK(r.layout() == c10::kStrided, "pretend: only strided tensors");
    auto* storage = r.storage().unsafeGetStorageImpl();
    auto [found, fresh] = by_host.try_emplace(storage, held.size());
    if (fresh) {
      auto* at = storage->mutable_data();
      auto data = device_memory(at, storage->nbytes(), where.index(), r.storage());
      Storage device({}, storage->nbytes(), std::move(data), device_allocator(), true);
      held.push_back({device, r.storage(), at});
    }
    return make(held[found->second].device, DispatchKey::PrivateUse1, r);
  }

 private:
  struct Pair {
    Tensor device, host;
  };
  struct Held {
    Storage device, host;
    void* at;
  };
  std::unordered_map<void*, size_t> by_device, by_host;  // storages, and their place in `held`
  std::vector<Held> held;
  std::vector<Pair> pairs;
  std::vector<void*> own;  // host tensors among the arguments

  static Tensor make(Storage storage, DispatchKey key, const Tensor& like) {
    auto impl = c10::make_intrusive<c10::TensorImpl>(std::move(storage), DispatchKeySet(key),
                                                     like.dtype());
    impl->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
    if (like.unsafeGetTensorImpl()->is_wrapped_number()) impl->set_wrapped_number(true);
    return Tensor(std::move(impl));
  }
};

// what a GPU does with arguments that lie elsewhere, and when the host waits ----------------------

const Names INDEXING{"aten::index",     "aten::_unsafe_index",    "aten::index_put",
                     "aten::index_put_", "aten::_index_put_impl_"};
// these take a number that lies on the host, besides those of one number an element
const Names NUMBERS{"aten::fill_", "aten::floor_divide", "aten::floor_divide_",
                    "aten::masked_fill", "aten::masked_fill_"};
// the shape of what they make is in the data, or the answer is Python's
const Names READING{"aten::nonzero",     "aten::nonzero_numpy",      "aten::masked_select",
                    "aten::equal",       "aten::_unique2",           "aten::unique_dim",
                    "aten::bincount",    "aten::unique_consecutive", "aten::repeat_interleave"};

class Arguments {
 public:
  explicit Arguments(const c10::OperatorHandle& op) : op(op), name(op.schema().name()) {}

  void look(const Tensor& t, Device& where) {
    if (!t.defined()) return;
    all.push_back(t);
    if (!on_device(t)) {
      hosts.push_back(t);
    } else {
      TORCH_CHECK(!found || t.device() == where, "Expected all tensors to be on the same device, ",
                  "but found at least two devices, ", where, " and ", t.device(),
                  "! (when calling ", name, ")");
      found = true;
      where = t.device();
    }
  }

  void check(Device where) const {
    if (!found) return;
    const bool indexes = INDEXING.count(name);
    const bool takes_numbers = op.hasTag(at::Tag::pointwise) || NUMBERS.count(name) ||
                               name.rfind("aten::_foreach_", 0) == 0;
    for (auto& t : hosts) {
      const bool number = t.dim() == 0 && (takes_numbers || is_literal(t));
      TORCH_CHECK(indexes || number, "Expected all tensors to be on the same device, but found ",
                  "at least two devices, ", where, " and cpu! (when calling ", name, ")");
      // torch.where brings a number to the device, as one brings indices
      if (indexes || name == "aten::where") waits("copy", name, t.nbytes());
    }
    bool reads = READING.count(name);
    for (size_t i = 1; indexes && i < all.size(); i++)  // a mask becomes indices: how many?
      reads |= on_device(all[i]) && is_mask(all[i]);
    reads |= name.rfind("aten::masked_fill", 0) == 0 && all.size() == 3 && on_device(all[2]);
    if (reads) waits("read", name, 0);
  }

 private:
  const c10::OperatorHandle& op;
  const std::string& name;
  std::vector<Tensor> all, hosts;
  bool found = false;  // a device tensor

  static bool is_literal(const Tensor& t) {
    return t.unsafeGetTensorImpl()->is_wrapped_number();
  }
  static bool is_mask(const Tensor& t) {
    return t.scalar_type() == at::kBool || t.scalar_type() == at::kByte;
  }
};

template <class F>
void change(c10::IValue& value, F f) {
  if (value.isTensor()) {
    value = f(value.toTensor());
  } else if (value.isTensorList()) {
    auto all = value.toTensorVector();
    for (auto& t : all) t = f(t);
    value = c10::List<Tensor>(all);
  } else if (value.isOptionalTensorList()) {
    c10::List<std::optional<Tensor>> all;
    for (const auto& t : value.toOptionalTensorVector())
      all.push_back(t ? std::optional<Tensor>(f(*t)) : std::nullopt);
    value = all;
  }
}

void run_on_host(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  Call call;
  Arguments arguments(op);
  const auto& schema = op.schema();
  const auto first = stack->size() - schema.arguments().size();
  for (size_t i = first; i < stack->size(); i++) {
    auto& value = (*stack)[i];
    const auto& type = *schema.arguments()[i - first].type();
    change(value, [&](const Tensor& t) {
      arguments.look(t, call.where);
      return call.lower(t);
    });
    if (value.isDevice() && value.toDevice().type() == KIND) {
      if (value.toDevice().has_index()) call.where = value.toDevice();
      value = Device(c10::kCPU);
    } else if (value.isGenerator() || (value.isNone() && type.str() == "Generator?")) {
      auto g = value.isNone() ? default_generator(call.where.index()) : value.toGenerator();
      if (g.device().type() == KIND)
        value = static_cast<Generator*>(g.unsafeGetGeneratorImpl())->cpu;
    }
  }
  arguments.check(call.where);
  {
    at::AutoDispatchBelowADInplaceOrView below;
    op.redispatchBoxed(DispatchKeySet(DispatchKey::CPU), stack);
  }
  call.resized();
  for (size_t i = stack->size() - schema.returns().size(); i < stack->size(); i++)
    change((*stack)[i], [&](const Tensor& t) { return call.raise(t); });
}

// what is no computation --------------------------------------------------------------------------

using Type = std::optional<at::ScalarType>;
using Layout = std::optional<at::Layout>;
using Where = std::optional<Device>;

Tensor empty(at::IntArrayRef size, Type type, Layout, Where device, std::optional<bool> pin,
             std::optional<at::MemoryFormat> format) {
  TORCH_CHECK(!pin.value_or(false), "Only dense CPU tensors can be pinned");
  c10::DeviceGuard guard(c10::device_or_default(device));
  return at::detail::empty_generic(size, device_allocator(),
                                   DispatchKeySet(DispatchKey::PrivateUse1),
                                   c10::dtype_or_default(type), format);
}

Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride, Type type, Layout, Where device,
                     std::optional<bool>) {
  c10::DeviceGuard guard(c10::device_or_default(device));
  return at::detail::empty_strided_generic(size, stride, device_allocator(),
                                           DispatchKeySet(DispatchKey::PrivateUse1),
                                           c10::dtype_or_default(type));
}

// Only what is pinned, and copied as it lies there, is copied while the host goes on.
bool goes_on(const Tensor& host, const Tensor& device, bool non_blocking) {
  return non_blocking && is_pinned(host.const_data_ptr()) && host.is_contiguous() &&
         host.sizes() == device.sizes();
}

Tensor copy_from(const Tensor& from, const Tensor& to, bool non_blocking) {
  Call call;
  auto a = call.lower(from), b = call.lower(to);
  at::AutoDispatchBelowADInplaceOrView below;
  if (on_device(from) && !on_device(to) && to.numel()) {
    if (goes_on(to, from, non_blocking)) {
      copy_to_host_later(a.to(to.scalar_type()), to.detach());
      return to;
    }
    waits("read", "copy", to.nbytes());
    finish();
  } else if (!on_device(from) && from.numel()) {
    if (goes_on(from, to, non_blocking)) {
      copy_to_device_later(from.detach(), b, to.storage());
      return to;
    }
    waits("copy", "copy", from.nbytes());
    if (!non_blocking) finish();
  }
  b.copy_(a);
  return to;
}

void fit(const Tensor& self) {
  auto need = at::detail::computeStorageNbytes(self.sizes(), self.strides(), self.itemsize(),
                                               self.storage_offset());
  if (self.numel() && need > self.storage().nbytes())
    resize_bytes(self.storage().unsafeGetStorageImpl(), need);
}

const Tensor& resize_(const Tensor& self, at::IntArrayRef size,
                      std::optional<at::MemoryFormat> format) {
  auto* impl = self.unsafeGetTensorImpl();
  if (self.sizes() != size) impl->set_sizes_contiguous(size);
  if (format) impl->empty_tensor_restride(*format);
  fit(self);
  return self;
}

Tensor copy_from_and_resize(const Tensor& from, const Tensor& to) {
  to.resize_(from.sizes());
  return copy_from(from, to, false);
}

at::Scalar item(const Tensor& self) {
  waits("read", "item", self.itemsize());
  finish();
  return on_host(self).item();
}

Tensor& set_at(Tensor& self, Storage storage, int64_t offset, at::IntArrayRef size,
               at::IntArrayRef stride) {
  auto* impl = self.unsafeGetTensorImpl();
  TORCH_CHECK(storage.device().type() == KIND, "Expected storage and tensor on one device, found ",
              storage.device(), " and ", self.device());
  impl->set_storage_keep_dtype(std::move(storage));
  if (stride.data()) {
    impl->set_sizes_and_strides(size, stride, offset);
  } else {
    impl->set_storage_offset(offset);
    impl->set_sizes_contiguous(size);
  }
  fit(self);
  return self;
}

Tensor& set_storage(Tensor& self, Storage storage) {
  int64_t n = storage.nbytes() / self.itemsize();
  return set_at(self, std::move(storage), 0, {n}, {});
}

Tensor& set_tensor(Tensor& self, const Tensor& from) {
  return set_at(self, from.storage(), from.storage_offset(), from.sizes(), from.strides());
}

Tensor& set_none(Tensor& self) { return set_tensor(self, at::empty({0}, self.options())); }

// `p.data = x` across devices, and so a module's .to() keeps its parameters, as on a GPU
bool compatible(const Tensor&, const Tensor&) { return true; }

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_host>());
}
TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFallthrough());
}
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  Names own;
  auto add = [&](const char* name, auto* function) {
    m.impl(name, function);
    own.insert(std::string("aten::") + name);
  };
  add("empty.memory_format", &empty);
  add("empty_strided", &empty_strided);
  add("_copy_from", &copy_from);
  add("_copy_from_and_resize", &copy_from_and_resize);
  add("_local_scalar_dense", &item);
  add("resize_", &resize_);
  add("set_.source_Storage_storage_offset", &set_at);
  add("set_.source_Storage", &set_storage);
  add("set_.source_Tensor", &set_tensor);
  add("set_", &set_none);
  add("_has_compatible_shallow_copy_type", &compatible);
  m.impl("record_stream", [](Tensor&, c10::Stream) {});
  // whatever has a kernel of its own on the CPU runs that one: else it would be computed from
  // others, and its bits would be other ones
  auto names = c10::Dispatcher::singleton().getRegistrationsForDispatchKey(DispatchKey::CPU);
  for (auto name : {"aten::convolution", "aten::convolution_backward"})
    names.emplace_back(name, "");
  for (auto& name : names) {
    auto full = toString(name);
    if (full.rfind("aten::", 0) == 0 && !own.count(full))
      m.impl(full.substr(6).c_str(), torch::CppFunction::makeFromBoxedFunction<&run_on_host>());
  }
}
}  // namespace

Tensor on_host(const Tensor& t) { return Call().lower(t.detach()); }
}  // namespace pretend
