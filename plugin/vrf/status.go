// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package vrf

import (
	"context"
	"errors"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/kernel"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/spec"
)

// status asks whether the kernel can make VRFs. It does so with a request that
// lacks the table: one that can refuses that (EINVAL), and nothing is made.
func status(_ context.Context, r *plugin.Request) error {
	host, err := kernel.Of(r).Host()
	if err != nil {
		return err
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "patchbay-probe"
	err = host.LinkAdd(&netlink.GenericLink{LinkAttrs: attrs, LinkType: "vrf"})
	if errors.Is(err, unix.EOPNOTSUPP) {
		return spec.Errorf(spec.CodeNotAvailable, "this kernel has no VRFs (CONFIG_NET_VRF, Linux 4.3): %w", err)
	}
	return nil // EPERM tells nothing: ADD may act in namespaces of the caller's own
}
