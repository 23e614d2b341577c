// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package enforce

import (
	"crypto/sha256"
	"encoding/hex"
	"net/netip"
	"strings"

	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/policy"
)

// These are the base chains, and two counters of denied packets. countUnknown counts for pods whose labels are
// not known yet, countClosed for pods that an ADD has closed.
const (
	chainEgress  = "policy_egress"
	chainIngress = "policy_ingress"
	chainInput   = "policy_input"

	countUnknown = "policy_unknown"
	countClosed  = "policy_closed"
)

// These are the beginnings of other names. A hash follows, or in the names of the maps 4 or 6. Of each pair, the
// first is for policy.Ingress and the second for policy.Egress.
var (
	kindPolicy   = [2]string{"policy_in_", "policy_out_"}
	kindPod      = [2]string{"policy_podin_", "policy_podout_"}
	kindAdmin    = [2]string{"policy_admin_", "policy_admout_"}
	kindDispatch = [2]string{"policy_ingress", "policy_egress"}
)

const (
	kindPods  = "policy_pods"
	kindNets  = "policy_nets"
	kindPorts = "policy_ports_"

	kindTail = "policy_drop" // in or out, and a cause
	kindTell = "policy_tell"

	kindEnded = "policy_ended" // in or out

	kindLocal = "policy_local" // addresses of this node's pods, which other sets and maps may have
)

// hash shortens the name of an object: names of nftables have at most 128 bytes.
func hash(name string) string {
	sum := sha256.Sum256([]byte(name))
	return hex.EncodeToString(sum[:8])
}

// families are the last characters of names, by v6.
var families = [2]string{"4", "6"}

func familyOf(a netip.Addr) int {
	if a.Is4() {
		return 0
	}
	return 1
}

// ofFamily names the set of an object for one family.
func ofFamily(kind string, family int, name string) string {
	return kind + families[family] + "_" + hash(name)
}

func dispatchOf(d policy.Direction, family int) string { return kindDispatch[d] + families[family] }

// isDispatch reports whether a set is a map from pods to chains.
func isDispatch(set string) bool {
	return set != "" && (set[:len(set)-1] == kindDispatch[0] || set[:len(set)-1] == kindDispatch[1])
}

// endedChain names the chain that drops the answers in flows that ended.
func endedChain(d policy.Direction) string { return kindEnded + way(d) }

// closedSet names the set of addresses that ADDs closed in a direction.
func closedSet(d policy.Direction, family int) string { return nft.ClosedSets()[d][family] }

// ofADDs reports whether ADDs, and not programs, decide what a set has.
func ofADDs(set string) bool {
	return set == nft.SetClosedIn4 || set == nft.SetClosedIn6 || set == nft.SetClosedOut4 || set == nft.SetClosedOut6
}

// ofOthers reports whether not programs decide what a set has, but ADDs or the kernel's rules.
func ofOthers(set string) bool { return ofADDs(set) || ofKernel(set) }

func isPods(set string) bool { return strings.HasPrefix(set, kindPods) }

func isNets(set string) bool { return strings.HasPrefix(set, kindNets) }

func isPorts(set string) bool { return strings.HasPrefix(set, kindPorts) }

// isV6 reports whether a set is for IPv6.
func isV6(set string) bool {
	base, _, _ := strings.Cut(strings.TrimPrefix(set, "policy_"), "_")
	return strings.HasSuffix(base, families[1])
}

func isBase(chain string) bool {
	return chain == chainEgress || chain == chainIngress || chain == chainInput
}

// depth orders chains: each jumps only to chains before it.
func depth(chain string) int {
	switch {
	case isBase(chain):
		return 3
	case strings.HasPrefix(chain, kindPod[0]), strings.HasPrefix(chain, kindPod[1]):
		return 2
	case strings.HasPrefix(chain, kindAdmin[0]), strings.HasPrefix(chain, kindAdmin[1]):
		return 1
	case strings.HasPrefix(chain, kindTail):
		return -1
	case strings.HasPrefix(chain, kindTell):
		return -2
	}
	return 0
}
