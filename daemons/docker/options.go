// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// These are the options of a network (-o).
const (
	optNetwork = "cni.network" // the name of a configuration
	optConf    = "cni.conf"    // in place of cni.network, the configuration itself or its file
	optPortmap = "cni.portmap" // auto or off
	optBridge  = "cni.gwbridge"
	optMode    = "cni.mode" // auto or hold
	optArgs    = "cni.args" // CNI_ARGS, as K=V;K=V; also an option of an endpoint
	optPrefix  = "cni.ifprefix"
	optDNS     = "cni.dns"    // docker or replace
	optLabels  = "cni.labels" // the prefix of the labels that go into CNI_ARGS
	optIsolate = "cni.isolate"
)

// options holds the decoded options of a network.
type options struct {
	user          map[string]string // as the user gave them
	network, conf string
	portmap       bool // use our portmap if the chain has no plugin for ports
	gwbridge      bool // let Docker connect docker_gwbridge if there is no default route
	hold          bool // run the whole chain while the interface is in the holding namespace
	args          map[string]string
	prefix        string // beginning of the interface's name in the container
	dns           bool   // write the chain's DNS servers into the container's resolv.conf
	isolate       string // ingressPolicy of the plugin firewall; if empty, the configuration decides
	labels        string // beginning of the names of the labels that plugins get; if empty, they get none
}

// parseOptions decodes the options. It refuses an option that it does not know: with a typing
// error, the user would get another network than intended.
func parseOptions(in map[string]string) (*options, error) {
	o := &options{user: in, portmap: true, prefix: "eth"}
	for _, key := range slices.Sorted(maps.Keys(in)) {
		if err := o.set(key, in[key]); err != nil {
			return nil, err
		}
	}
	if (o.network == "") == (o.conf == "") {
		return nil, fmt.Errorf("name the CNI network with -o %s=NAME or -o %s=FILE", optNetwork, optConf)
	}
	if o.hold && o.labels != "" {
		return nil, fmt.Errorf("%s: with %s=hold no plugin runs after the labels are known", optLabels, optMode)
	}
	return o, nil
}

func (o *options) set(key, value string) (err error) {
	switch key {
	case optNetwork:
		o.network = value
	case optConf:
		o.conf = value
	case optPortmap:
		var off bool
		off, err = choice(key, value, "auto", "off")
		o.portmap = !off
	case optMode:
		o.hold, err = choice(key, value, "auto", "hold")
	case optDNS:
		o.dns, err = choice(key, value, "docker", "replace")
	case optLabels:
		if o.labels = value; value == "" {
			err = fmt.Errorf("option %s: give the prefix of the labels' names", key)
		}
	case optIsolate:
		policy, ok := map[string]string{"true": "same-bridge", "strict": "isolated"}[value]
		if o.isolate = policy; !ok && value != "false" {
			err = fmt.Errorf("option %s=%q: want true (other networks with this option cannot reach it), strict (its containers also cannot reach each other through the host) or false", key, value)
		}
	case optBridge:
		if o.gwbridge, err = strconv.ParseBool(value); err != nil {
			err = fmt.Errorf("option %s=%q: want true or false", key, value)
		}
	case optArgs:
		o.args, err = parseArgs(value)
	case optPrefix:
		o.prefix, err = value, validPrefix(value)
	default:
		err = fmt.Errorf("option %q is not one of this driver (docs/docker.md)", key)
	}
	return err
}

// choice reports whether value is the second of two words. Any third word is an error.
func choice(key, value, first, second string) (bool, error) {
	if value != first && value != second {
		return false, fmt.Errorf("option %s=%q: want %s or %s", key, value, first, second)
	}
	return value == second, nil
}

// maxPrefix is how long the prefix of an interface name may be, so that a number fits behind
// it.
const maxPrefix = 11

func validPrefix(s string) error {
	if s == "" || len(s) > maxPrefix || strings.ContainsFunc(s, func(c rune) bool { return c <= ' ' || c > '~' || c == '/' || c == ':' }) {
		return fmt.Errorf("option %s=%q: want up to %d characters of an interface name", optPrefix, s, maxPrefix)
	}
	return nil
}

// parseArgs parses CNI_ARGS. It refuses keys that this driver sets itself.
func parseArgs(s string) (map[string]string, error) {
	out := map[string]string{}
	for _, pair := range strings.Split(s, ";") {
		k, v, ok := strings.Cut(pair, "=")
		if !ok || k == "" {
			return nil, fmt.Errorf("option %s: %q is not KEY=VALUE", optArgs, pair)
		}
		if k == "IP" || k == "MAC" || k == "IgnoreUnknown" {
			return nil, fmt.Errorf("option %s: %s is Docker's to set (--ip, --mac-address)", optArgs, k)
		}
		if strings.HasPrefix(k, argPrefix) { // plugins take these keys for what Docker says
			return nil, fmt.Errorf("option %s: %s is the driver's to set: it describes the container", optArgs, k)
		}
		out[k] = v
	}
	return out, nil
}
