// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package tuning

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net"

	"github.com/patchbay-net/patchbay/internal/endpoint"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/spec"
)

// Conf is the configuration of this plugin.
type Conf struct {
	// DataDir is the directory of the backups from which DEL restores. Default: /run/cni/tuning.
	// Reference: a backup remains when the namespace is gone.
	DataDir string `json:"dataDir"`

	// Sysctl has keys below net, in the spellings of sysctl.d(5): with slashes, or with dots where
	// a slash is a dot of a name; IFNAME stands for the interface. They are written in the given
	// order. They are not restored, because they end with the namespace. Reference: writes in any
	// order; a name of an interface with dots breaks the key; CHECK compares the text.
	Sysctl Sysctls `json:"sysctl"`

	// Mac is the hardware address.
	// Reference: same.
	Mac string `json:"mac"`

	// Promisc switches promiscuous mode on. Reference: CHECK compares it even when it is not
	// configured.
	Promisc bool `json:"promisc"`

	// MTU in bytes; 0 leaves it unchanged. The other end of a veth pair keeps its MTU: if that is
	// smaller, ADD warns and CHECK fails. Reference: loses larger packets without a word.
	MTU int `json:"mtu"`

	// TxQLen is the length of the send queue in packets. If it is missing, the length is
	// unchanged. Reference: same.
	TxQLen *int `json:"txQLen"`

	// Allmulti makes the interface receive every multicast. If it is missing, the setting is
	// unchanged. Reference: same.
	Allmulti *bool `json:"allmulti"`

	RuntimeConfig struct {
		// Mac is the value of the capability. It overrides MAC= in CNI_ARGS and the configuration.
		// Reference: same.
		Mac string `json:"mac"`
	} `json:"runtimeConfig"`
	Args struct {
		CNI *Overrides `json:"cni"`
	} `json:"args"`
}

// Overrides are the values in args.cni. They override everything else, including
// runtimeConfig.
type Overrides struct {
	// Sysctl is merged with the configuration's sysctl, and overrides its values. Reference: crashes
	// when the configuration has none.
	Sysctl Sysctls `json:"sysctl"`

	// Mac overrides every other Ethernet address. Reference: same.
	Mac *string `json:"mac"`

	// Promisc overrides the configuration's.
	// Reference: same.
	Promisc *bool `json:"promisc"`

	// MTU overrides the configuration's.
	// Reference: same.
	MTU *int `json:"mtu"`

	// Allmulti overrides the configuration's.
	// Reference: same.
	Allmulti *bool `json:"allmulti"`

	// TxQLen overrides the configuration's.
	// Reference: same.
	TxQLen *int `json:"txQLen"`
}

// Sysctl is a key, as written, and its value.
type Sysctl struct{ Key, Value string }

// Sysctls are the pairs in the order of the configuration. They are written in this order.
type Sysctls []Sysctl

var errDuplicate = errors.New("duplicated sysctl keys are not allowed")

// UnmarshalJSON reads an object and keeps its order. UnmarshalJSON returns an error for a key
// that is given twice.
func (s *Sysctls) UnmarshalJSON(data []byte) error {
	dec := json.NewDecoder(bytes.NewReader(data))
	start, err := dec.Token()
	if err != nil || start == nil { // a JSON null
		return err
	}
	if start != json.Delim('{') {
		return fmt.Errorf("sysctl must be an object of strings, not %.20s", data)
	}
	for dec.More() {
		key, err := dec.Token()
		if err != nil {
			return err
		}
		var value string
		if err := dec.Decode(&value); err != nil {
			return err
		}
		if s.find(key.(string)) != nil {
			return errDuplicate
		}
		*s = append(*s, Sysctl{key.(string), value})
	}
	return nil
}

func (s Sysctls) find(key string) *Sysctl {
	for i := range s {
		if s[i].Key == key {
			return &s[i]
		}
	}
	return nil
}

// merge adds other. If both have a key, the value of other wins.
func (s *Sysctls) merge(other Sysctls) {
	for _, o := range other {
		if have := s.find(o.Key); have != nil {
			have.Value = o.Value
			continue
		}
		*s = append(*s, o)
	}
}

// Load merges the values that override the configuration, and validates the result. For the
// MAC address, the order of precedence is args.cni, runtimeConfig, CNI_ARGS, configuration.
func (c *Conf) Load(r *plugin.Request) error {
	arg, err := endpoint.MACArg(r)
	if err != nil {
		return err
	}
	c.Mac = cmp.Or(c.RuntimeConfig.Mac, arg, c.Mac)
	if c.Args.CNI != nil {
		c.override(c.Args.CNI)
	}
	return c.validate()
}

func (c *Conf) override(o *Overrides) {
	c.Sysctl.merge(o.Sysctl)
	set(&c.Mac, o.Mac)
	set(&c.Promisc, o.Promisc)
	set(&c.MTU, o.MTU)
	if o.Allmulti != nil {
		c.Allmulti = o.Allmulti
	}
	if o.TxQLen != nil {
		c.TxQLen = o.TxQLen
	}
}

func set[T any](to *T, from *T) {
	if from != nil {
		*to = *from
	}
}

func (c *Conf) validate() error {
	if c.Mac != "" {
		mac, err := net.ParseMAC(c.Mac)
		if err = cmp.Or(err, endpoint.ValidateMAC(mac)); err != nil {
			return spec.Invalid("invalid args %v for MAC addr: %w", c.Mac, err)
		}
	}
	if c.MTU < 0 || c.MTU > math.MaxInt32 {
		return spec.Invalid("invalid mtu %d: must be positive, and %d at most", c.MTU, math.MaxInt32)
	}
	if n := c.TxQLen; n != nil && (*n < 0 || *n > math.MaxUint32) {
		return spec.Invalid("invalid txQLen %d: must be between 0 and %d", *n, int64(math.MaxUint32))
	}
	return nil
}

// attributes reports whether the configuration changes anything that DEL must restore.
func (c *Conf) attributes() bool {
	return c.Mac != "" || c.MTU != 0 || c.Promisc || c.Allmulti != nil || c.TxQLen != nil
}
