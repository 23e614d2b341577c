// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package tuning

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net"

	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/spec"
)

// Conf is the configuration.
type Conf struct {
	DataDir  string  `json:"dataDir"` // backups of what DEL restores; default /run/cni/tuning
	Sysctl   Sysctls `json:"sysctl"`  // below net; IFNAME in a key stands for the interface
	Mac      string  `json:"mac"`
	Promisc  bool    `json:"promisc"`
	MTU      int     `json:"mtu"`      // bytes; 0 leaves it
	TxQLen   *int    `json:"txQLen"`   // packets
	Allmulti *bool   `json:"allmulti"` // receive every multicast

	RuntimeConfig struct {
		Mac string `json:"mac"`
	} `json:"runtimeConfig"`
	Args struct {
		CNI *Overrides `json:"cni"`
	} `json:"args"`
}

// Overrides are args.cni, which beat everything else, runtimeConfig included.
type Overrides struct {
	Sysctl   Sysctls `json:"sysctl"`
	Mac      *string `json:"mac"`
	Promisc  *bool   `json:"promisc"`
	MTU      *int    `json:"mtu"`
	Allmulti *bool   `json:"allmulti"`
	TxQLen   *int    `json:"txQLen"`
}

// Sysctl is one key as written and its value.
type Sysctl struct{ Key, Value string }

// Sysctls are the pairs in the order of the configuration, which is the order
// of writing.
type Sysctls []Sysctl

var errDuplicate = errors.New("duplicated sysctl keys are not allowed")

// UnmarshalJSON reads an object, keeps its order and refuses a key given twice.
func (s *Sysctls) UnmarshalJSON(data []byte) error {
	dec := json.NewDecoder(bytes.NewReader(data))
	start, err := dec.Token()
	if err != nil || start == nil { // null
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

// merge lets other win.
func (s *Sysctls) merge(other Sysctls) {
	for _, o := range other {
		if have := s.find(o.Key); have != nil {
			have.Value = o.Value
			continue
		}
		*s = append(*s, o)
	}
}

// decode reads the configuration; precedence of the MAC address: args.cni,
// runtimeConfig, CNI_ARGS, configuration.
func decode(r *plugin.Request) (*Conf, error) {
	conf := new(Conf)
	if err := r.Decode(conf); err != nil {
		return nil, err
	}
	args, err := r.CNIArgs()
	if err != nil {
		return nil, err
	}
	if mac, ok := spec.LookupArg(args, "MAC"); ok && mac != "" {
		conf.Mac = mac
	}
	if conf.RuntimeConfig.Mac != "" {
		conf.Mac = conf.RuntimeConfig.Mac
	}
	if conf.Args.CNI != nil {
		conf.override(conf.Args.CNI)
	}
	return conf, conf.validate()
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
		if _, err := net.ParseMAC(c.Mac); err != nil {
			return refuse("invalid args %v for MAC addr: %w", c.Mac, err)
		}
	}
	if c.MTU < 0 {
		return refuse("invalid mtu %d: must be positive", c.MTU)
	}
	if c.TxQLen != nil && *c.TxQLen < 0 {
		return refuse("invalid txQLen %d: must not be negative", *c.TxQLen)
	}
	return nil
}

// attributes says whether anything is changed that DEL must restore.
func (c *Conf) attributes() bool {
	return c.Mac != "" || c.MTU != 0 || c.Promisc || c.Allmulti != nil || c.TxQLen != nil
}

func refuse(format string, args ...any) error {
	return spec.Errorf(spec.CodeInvalidConfig, format, args...)
}
