#!/usr/bin/env bash
# Install the Debian packages that some tests want: hosts made of network namespaces, Slurm,
# Fashion-MNIST, a browser, a compiler, and libjpeg-turbo's headers and programs. Without them these tests are skipped, and say so. Needs root.
set -euo pipefail
packages=(chromium dataset-fashion-mnist g++ iproute2 libjpeg-turbo-progs libjpeg-dev munge openssh-client openssh-server pdsh procps slurm-wlm)
missing=()
for package in "${packages[@]}"; do
    dpkg -s "$package" > /dev/null 2>&1 || missing+=("$package")
done
[ ${#missing[@]} -gt 0 ] || exit 0
echo "debian: installing ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -y -qq --no-install-recommends "${missing[@]}" > /dev/null
