#!/usr/bin/env bash
# Install the Debian packages that some tests want: hosts made of network namespaces, Slurm,
# Fashion-MNIST, a browser, a compiler, fish and zsh, and libjpeg-turbo's headers and programs.
# Without them these tests are skipped, and say so. Needs root.
set -euo pipefail
packages=(dataset-fashion-mnist fish g++ iproute2 libjpeg-turbo-progs libjpeg-dev munge openssh-client openssh-server pdsh procps slurm-wlm zsh)
browser=(chromium) # 400 MB, left out where the disk has little left for what comes after
if [ "$(df --output=avail -k /usr | tail -1)" -gt 16000000 ]; then
    packages+=("${browser[@]}")
fi
missing=()
for package in "${packages[@]}"; do
    dpkg -s "$package" > /dev/null 2>&1 || missing+=("$package")
done
[ ${#missing[@]} -gt 0 ] || exit 0
echo "debian: installing ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -y -qq --no-install-recommends "${missing[@]}" > /dev/null
apt-get clean
