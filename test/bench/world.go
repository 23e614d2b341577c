// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// enterWorld makes this process's new namespaces look like a node: /run and /var/lib are empty,
// /proc and /sys show the new namespaces, and forwarding is on.
func enterWorld() error {
	mounts := []struct {
		source, target, kind string
		flags                uintptr
	}{
		{"", "/", "", unix.MS_REC | unix.MS_PRIVATE},
		{"proc", "/proc", "proc", 0},
		{"sysfs", "/sys", "sysfs", 0},
		{"run", "/run", "tmpfs", 0},
		{"lib", "/var/lib", "tmpfs", 0},
	}
	for _, m := range mounts {
		if err := unix.Mount(m.source, m.target, m.kind, m.flags, ""); err != nil {
			return fmt.Errorf("mount %s: %w", m.target, err)
		}
	}
	for _, dir := range []string{"/run/netns", "/var/lib/cni"} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return err
	}
	return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0)
}

// sandbox returns the path of the container namespace with that name. At the first call it makes
// the namespace.
func sandbox(name string) (string, error) {
	path := filepath.Join("/run/netns", name)
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	runtime.LockOSThread()
	home, err := netns.Get()
	if err != nil {
		return "", err
	}
	defer home.Close()
	ns, err := netns.NewNamed(name)
	if err != nil {
		return "", fmt.Errorf("make namespace %s: %w", name, err)
	}
	ns.Close()
	if err := netns.Set(home); err != nil {
		return "", fmt.Errorf("return from namespace %s: %w", name, err) // the thread stays locked and ends
	}
	runtime.UnlockOSThread()
	return path, nil
}

// removeSandbox removes a container namespace that still has attachments.
func removeSandbox(name string) error { return netns.DeleteNamed(name) }
