/* A disk that is full at one write below a folder, or from one on: preloaded, and told which.

   What fails: writes, flushes, renames, new folders, and files opened to be made. Each is logged. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

static char folder[PATH_MAX];
static long first, last, count;
static int log_file = -1;

/* Fail the writes numbered [at, at + times) below a folder; 0 times: none. */
void full_disk(const char *below, long at, long times, const char *log)
{
    log_file = open(log, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    first = at, last = at + times, count = 0;
    snprintf(folder, sizeof folder, "%s", below);
}

static int full(const char *what, const char *path)
{
    if (!*folder || !path || strncmp(path, folder, strlen(folder)))
        return 0;
    long n = __atomic_add_fetch(&count, 1, __ATOMIC_SEQ_CST);
    int fails = first <= n && n < last;
    dprintf(log_file, "%ld %d %s %s\n", n, fails, what, path + strlen(folder));
    if (fails)
        errno = ENOSPC;
    return fails;
}

static int full_fd(const char *what, int fd)
{
    char link[64], path[PATH_MAX];
    if (!*folder)
        return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0)
        return 0;
    path[length] = 0;
    return full(what, path);
}

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

ssize_t write(int fd, const void *data, size_t size)
{
    return full_fd("write", fd) ? -1 : NEXT(write)(fd, data, size);
}

ssize_t writev(int fd, const struct iovec *parts, int n)
{
    return full_fd("write", fd) ? -1 : NEXT(writev)(fd, parts, n);
}

ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at)
{
    return full_fd("write", fd) ? -1 : NEXT(pwrite64)(fd, data, size, at);
}

int fsync(int fd)
{
    return full_fd("fsync", fd) ? -1 : NEXT(fsync)(fd);
}

int rename(const char *old, const char *new)
{
    return full("rename", old) ? -1 : NEXT(rename)(old, new);
}

int mkdir(const char *path, mode_t mode)
{
    return full("mkdir", path) ? -1 : NEXT(mkdir)(path, mode);
}

#define OPENS(name)                                                                               \
    int name(const char *path, int flags, ...)                                                    \
    {                                                                                             \
        va_list rest;                                                                             \
        va_start(rest, flags);                                                                    \
        mode_t mode = flags & (O_CREAT | __O_TMPFILE) ? va_arg(rest, mode_t) : 0;                 \
        va_end(rest);                                                                             \
        return flags & O_CREAT && full("open", path) ? -1 : NEXT(name)(path, flags, mode);        \
    }

OPENS(open)
OPENS(open64)
