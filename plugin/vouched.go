// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/patchbay-net/patchbay/internal/vouched"
	"github.com/patchbay-net/patchbay/spec"
)

// The two names of a GC's list (spec.Conf).
const (
	validKey    = "cni.dev/valid-attachments"
	validOldKey = "cni.dev/attachments"
)

// vouch adds to a GC's valid attachments those of the Docker driver: the caller may be
// another runtime on the same network. Plugins that are called in turn, ours or not, get
// the longer list.
func vouch(call *spec.Call, head *spec.Conf, s *Session) (*spec.Call, *spec.Conf, error) {
	valid, ok := head.Valid()
	if call.Verb != spec.GC || !ok {
		return call, head, nil
	}
	held, err := vouched.Attachments(s.Paths.Run, head.Name, s.Paths.Proc)
	if err != nil {
		return nil, nil, err
	}
	all := slices.Clone(valid)
	for _, a := range held {
		if !slices.Contains(all, a) {
			all = append(all, a)
		}
	}
	if len(all) == len(valid) {
		return call, head, nil
	}
	more := *call
	if more.Config, err = withValid(call.Config, all); err != nil {
		return nil, nil, err
	}
	head, err = spec.ParseConf(more.Config)
	return &more, head, err
}

func withValid(config []byte, valid []spec.Attachment) ([]byte, error) {
	var conf map[string]json.RawMessage
	if err := json.Unmarshal(config, &conf); err != nil {
		return nil, err
	}
	for key := range conf { // keys match in any case
		if strings.EqualFold(key, validKey) || strings.EqualFold(key, validOldKey) {
			delete(conf, key)
		}
	}
	list, err := json.Marshal(valid)
	if err != nil {
		return nil, err
	}
	conf[validKey], conf[validOldKey] = list, list
	return json.Marshal(conf)
}
