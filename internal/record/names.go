// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package record

import (
	"fmt"
	"net/netip"
)

// InternalFact returns the name of the fact that stops the host from forwarding packets from
// and to a link. The link is the bridge of an internal network.
func InternalFact(link string) string { return "internal-" + link }

// SpanFact returns the name of the fact that lets internal networks forward within the range of a network
// that spans hosts. bits is the prefix length of a host's block.
func SpanFact(network netip.Prefix, bits int) string { return fmt.Sprintf("span-%s-%d", network, bits) }

// FastPathFact returns the name of the fact that puts a bridge into the flowtable. While the fact exists,
// established flows of the bridge may skip the forward hook.
func FastPathFact(bridge string) string { return "fastpath-" + bridge }
