// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package bandwidth

import (
	"fmt"
	"math"

	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/spec"
)

// Limits are rates in bits a second and bursts in bits. Ingress is the traffic that the
// container receives. A rate of 0 means no limit.
type Limits struct {
	// IngressRate limits what the container receives, in bits a second, at most 1 Pbit/s; 0
	// means no limit. Reference: treats a rate below 8 as 0.
	IngressRate uint64 `json:"ingressRate"`

	// IngressBurst is the burst in bits, less than 4 GiB; required with ingressRate. Reference:
	// passes the largest value, which runtimes send for "none", to the kernel.
	IngressBurst uint64 `json:"ingressBurst"`

	// EgressRate limits what the container sends, in bits a second, at most 1 Pbit/s; 0 means no
	// limit. Reference: treats a rate below 8 as 0; a second attachment of the container to the
	// network fails.
	EgressRate uint64 `json:"egressRate"`

	// EgressBurst is the burst in bits, less than 4 GiB; required with egressRate. Reference:
	// passes the largest value, which runtimes send for "none", to the kernel.
	EgressBurst uint64 `json:"egressBurst"`
}

// Conf is the configuration. If it has any of the four keys, the plugin ignores the capability
// `bandwidth`. It never mixes values of both.
type Conf struct {
	*Limits

	RuntimeConfig struct {
		// Bandwidth has the same four keys; it is ignored if the configuration itself has one of
		// them. Reference: same.
		Bandwidth *Limits `json:"bandwidth"`
	} `json:"runtimeConfig"`

	shapes shapes
}

// shape is the token bucket of one direction, in the kernel's units.
type shape struct {
	rate  uint64 // bytes per second
	burst uint32 // bytes
}

// shapes holds both directions. A rate of 0 means no limit.
type shapes struct{ ingress, egress shape }

func (s shapes) none() bool { return s.ingress.rate == 0 && s.egress.rate == 0 }

// Runtimes send one of these bursts if a pod sets a rate and no burst: the highest 32-bit
// number of bits (containerd, 512 MiB), or of bytes (CRI-O, 4 GiB less 8 bits; Kubernetes has
// the same constant).
const (
	noBurstContainerd = math.MaxUint32
	noBurstCRIO       = 8*math.MaxUint32 - 1
)

// maxRate is the highest rate that Kubernetes accepts, in bits a second: 1 Pbit/s.
const maxRate = 1e15

// Load validates the limits.
func (c *Conf) Load(*plugin.Request) (err error) {
	c.shapes, err = c.limits(true)
	return err
}

// limits returns the limits of the configuration or, if it has none, the runtime's limits. If
// sensible is set, limits replaces a burst of the runtime that means "none".
func (c *Conf) limits(sensible bool) (shapes, error) {
	limits, fromRuntime := c.Limits, false
	if limits == nil {
		limits, fromRuntime = c.RuntimeConfig.Bandwidth, sensible
	}
	if limits == nil {
		return shapes{}, nil
	}
	ingress, err := toShape(limits.IngressRate, limits.IngressBurst, fromRuntime)
	if err != nil {
		return shapes{}, spec.Invalid("ingress: %w", err)
	}
	egress, err := toShape(limits.EgressRate, limits.EgressBurst, fromRuntime)
	if err != nil {
		return shapes{}, spec.Invalid("egress: %w", err)
	}
	return shapes{ingress, egress}, nil
}

// toShape converts bits to bytes. toShape returns an error if only one of rate and burst is
// set.
func toShape(rate, burst uint64, fromRuntime bool) (shape, error) {
	if fromRuntime && (burst == noBurstContainerd || burst == noBurstCRIO) {
		burst = defaultBurst(rate)
	}
	switch {
	case burst == 0 && rate != 0:
		return shape{}, spec.Invalid("if rate is set, burst must also be set")
	case rate == 0 && burst != 0:
		return shape{}, spec.Invalid("if burst is set, rate must also be set")
	case burst/8 >= math.MaxUint32:
		return shape{}, spec.Invalid("burst cannot be more than 4GB")
	case rate != 0 && rate < 8:
		return shape{}, spec.Invalid("invalid rate: %d bits/s is less than a byte a second", rate)
	case rate > maxRate:
		return shape{}, spec.Invalid("invalid rate: %d bits/s is more than 1 Pbit/s", rate)
	case burst != 0 && burst < 8:
		return shape{}, spec.Invalid("invalid burst: %d bits is less than a byte", burst)
	}
	return shape{rate: rate / 8, burst: uint32(burst / 8)}, nil
}

// defaultBurst returns the burst, in bits, for a runtime that sends none. The runtimes' 512
// MiB would let seven minutes of traffic pass unlimited at 10 Mbit/s (kubernetes#90838). The
// default is a tenth of a second of the rate, but at least two packets of the largest size
// that the network stack sends (GSO, 64 KiB). Without a rate it is 0.
func defaultBurst(rate uint64) uint64 {
	const least = 2 * 65536 * 8
	if rate == 0 {
		return 0
	}
	return min(max(rate/10, least), 8*(math.MaxUint32-1))
}

// validate returns an error if the interface is not a veth. It knows this only if the list shows
// which plugin makes the interface.
func validate(r *plugin.Request) error {
	if plugin.ConfOf[Conf](r).shapes.none() {
		return nil
	}
	if main := withoutVeth(r); main != "" {
		return spec.Invalid("a %s has no end on the host to limit: bandwidth needs a bridge or ptp", main)
	}
	return nil
}

// withoutVeth returns the name of the plugin that makes the interface, if the interface is not
// a veth.
func withoutVeth(r *plugin.Request) string {
	if r.InList == nil || r.InList.Main == "bridge" || r.InList.Main == "ptp" {
		return ""
	}
	return r.InList.Main
}

// packet is the largest packet of most interfaces, in bytes.
const packet = 1500

func doubts(r *plugin.Request) (list []string) {
	limits := plugin.ConfOf[Conf](r).shapes
	granted := r.InList != nil && r.InList.Granted["bandwidth"]
	if limits.none() && !granted {
		list = append(list, "it limits nothing: it has no rate, and no capability bandwidth by which the runtime would give one")
	}
	if main := withoutVeth(r); limits.none() && main != "" {
		list = append(list, fmt.Sprintf("a %s has no end on the host to limit: bandwidth needs a bridge or ptp", main))
	}
	list = append(list, limits.ingress.doubt("ingressBurst")...)
	return append(list, limits.egress.doubt("egressBurst")...)
}

func (s shape) doubt(key string) []string {
	if s.rate == 0 || s.burst >= packet {
		return nil
	}
	return []string{fmt.Sprintf("%s is %d bytes: no larger packet ever passes", key, s.burst)}
}
