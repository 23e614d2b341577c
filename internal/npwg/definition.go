// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package npwg

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/patchbay-net/patchbay/internal/lightjson"
	"github.com/patchbay-net/patchbay/spec"
)

// Definition is a NetworkAttachmentDefinition, as far as an ADD needs it.
type Definition struct {
	Namespace       string `json:"namespace"`
	Name            string `json:"name"`
	UID             string `json:"uid,omitempty"`
	ResourceVersion string `json:"resourceVersion,omitempty"`

	// Config is spec.config. If it is empty, a file of the node has the configuration (§3.4.1).
	Config string `json:"config,omitempty"`

	// Resource is the device plugin's resource of the annotation k8s.v1.cni.cncf.io/resourceName.
	Resource string `json:"resource,omitempty"`
}

// String names the definition.
func (d *Definition) String() string { return d.Namespace + "/" + d.Name }

// Named returns a configuration with a name. If it has none, it gets that of its definition (§3.4.2). list reports
// whether it is a list of plugins, and not a single one.
func Named(config []byte, name string) (named []byte, list bool, err error) {
	o, err := spec.ParseObject(config)
	if err != nil {
		return nil, false, fmt.Errorf("its configuration is no JSON object: %w", err)
	}
	_, list = o.Get("plugins")
	if _, has := o.Get("name"); !has {
		if err := o.Set("name", name); err != nil {
			return nil, false, err
		}
	}
	named, err = o.JSON()
	return named, list, err
}

// Configure returns the configuration of a plugin with what the pod asks for by other ways than capabilities: its arguments are in
// args.cni, where those of the definition give way (§4.1.2.1.6), and a device has the keys that Multus gives it.
func Configure(plugin json.RawMessage, ask *Ask) (json.RawMessage, error) {
	if len(ask.Args) == 0 && ask.DeviceID == "" {
		return plugin, nil
	}
	o, err := spec.ParseObject(plugin)
	if err != nil {
		return nil, err
	}
	if ask.DeviceID != "" {
		err = errors.Join(o.Set("deviceID", ask.DeviceID), o.Set("pciBusID", ask.DeviceID))
	}
	if len(ask.Args) > 0 {
		err = errors.Join(err, mergeArgs(o, ask.Args))
	}
	if err != nil {
		return nil, err
	}
	return o.JSON()
}

// mergeArgs puts arguments into args.cni.
func mergeArgs(o spec.Object, add map[string]json.RawMessage) error {
	var args map[string]json.RawMessage
	if raw, ok := o.Get("args"); ok {
		if err := lightjson.Unmarshal(raw, &args); err != nil {
			return fmt.Errorf("args: %w", err)
		}
	}
	var cni map[string]json.RawMessage
	if raw, ok := args["cni"]; ok {
		if err := lightjson.Unmarshal(raw, &cni); err != nil {
			return fmt.Errorf("args.cni: %w", err)
		}
	}
	if args == nil {
		args = make(map[string]json.RawMessage)
	}
	if cni == nil {
		cni = make(map[string]json.RawMessage)
	}
	for key, value := range add {
		cni[key] = value
	}
	raw, err := lightjson.Marshal(cni)
	if err != nil {
		return err
	}
	args["cni"] = raw
	return o.Set("args", args)
}
