// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"bytes"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/patchbay-net/patchbay/spec"
)

// request is one `cni` line: the verb and its key=value words.
type request struct {
	verb spec.Verb
	opts map[string]string
}

func parseRequest(args []string) (*request, error) {
	if len(args) == 0 {
		return nil, fmt.Errorf("usage: cni VERB [key=value...]")
	}
	r := &request{verb: spec.Verb(args[0]), opts: map[string]string{}}
	for _, word := range args[1:] {
		k, v, ok := strings.Cut(word, "=")
		if !ok {
			return nil, fmt.Errorf("cni: %q is not key=value", word)
		}
		r.opts[k] = v
	}
	return r, nil
}

// get returns the value of an option, or def if the line does not set it.
func (r *request) get(key, def string) string {
	if v, ok := r.opts[key]; ok {
		return v
	}
	return def
}

// ownNetNS leads to the plugin's own namespace. It is not below /proc/self, because the main thread may have ended in another one.
const ownNetNS = "/proc/thread-self/ns/net"

// call builds the environment of a call for an attachment.
func (w *World) call(p *place, r *request) (*spec.Call, error) {
	c := &spec.Call{Verb: r.verb, Path: w.suite.Path}
	if w.stub != nil {
		c.Path = append(c.Path[:len(c.Path):len(c.Path)], w.stub.dir)
	}
	if w.attachment(r.verb) {
		c.ContainerID = r.get("id", p.ContainerID)
		c.IfName = r.get("ifname", p.IfName)
		c.Args = strings.ReplaceAll(r.get("args", w.suite.Subject.Args), "{id}", p.ContainerID)
		c.NetNS = p.NetNS
	}
	switch r.get("netns", "") {
	case "none":
		c.NetNS = ""
	case "gone":
		c.NetNS = p.NetNS + "-gone"
	case "host":
		c.NetNS = ownNetNS
	}
	var err error
	c.Config, err = w.config(p, r)
	return c, err
}

// attachment reports whether a call has the variables of one attachment. A verb that does not exist, or not at this version,
// gets them, too: then nothing but the verb is wrong.
func (w *World) attachment(verb spec.Verb) bool {
	if verb == spec.GC || verb == spec.Status {
		return !spec.AtLeast(w.version, "1.1.0")
	}
	return verb != spec.Version
}

// config builds the standard input of a call.
func (w *World) config(p *place, r *request) ([]byte, error) {
	if r.get("conf", "") == "garbage" {
		return []byte(`{"cniVersion": "1.1.0", "name`), nil
	}
	if r.get("conf", "") == "version" {
		return json.Marshal(Object{"cniVersion": text(r.get("version", w.version))})
	}
	conf := merge(w.suite.Subject.Conf, nil)
	if p.second || r.get("conf", "") == "second" {
		conf = merge(conf, w.suite.Subject.Second)
	}
	reduce(conf, w.suite.Subject.Keep, r.get("conf", ""))
	if ipam := w.ipam(r.get("conf", "")); ipam != "" {
		conf["ipam"] = json.RawMessage(fmt.Sprintf(`{"type":%q}`, ipam))
	}
	conf["type"] = text(w.suite.Subject.Type)
	conf["name"] = text(r.get("name", Network))
	conf["cniVersion"] = text(r.get("version", w.version))
	if err := w.previous(conf, p, r); err != nil {
		return nil, err
	}
	if valid, ok := r.opts["valid"]; ok {
		list, err := w.attachments(valid)
		if err != nil {
			return nil, err
		}
		conf["cni.dev/valid-attachments"], conf["cni.dev/attachments"] = list, list
	}
	return json.Marshal(conf)
}

// ipam returns the type of the IPAM plugin of a call, if it is another than the subject's: the suite's own, one that does
// not exist ("lost"), or the suite's own by a path that leads out of CNI_PATH ("escape").
func (w *World) ipam(conf string) string {
	switch {
	case conf == "lost":
		return "no-such-ipam"
	case w.stub == nil:
		return ""
	case conf == "escape":
		return "../" + filepath.Base(w.stub.dir) + "/" + stubType
	}
	return stubType
}

// reduce changes the ADD's configuration in the way that kind names ("bare", "wrong").
func reduce(conf Object, keep []string, kind string) {
	var ipam struct {
		Type string `json:"type"`
	}
	_ = json.Unmarshal(conf["ipam"], &ipam)
	for key := range conf {
		switch {
		case slices.Contains(keep, key):
		case kind == "bare":
			delete(conf, key)
		case kind == "wrong" && key != "ipam":
			conf[key] = json.RawMessage(`{"of":["the","wrong","type"]}`)
		}
	}
	if (kind == "bare" || kind == "wrong") && ipam.Type != "" {
		conf["ipam"] = json.RawMessage(fmt.Sprintf(`{"type":%q}`, ipam.Type))
	}
}

// previous sets prevResult in the version of the configuration. An ADD gets the result of the
// plugin before. CHECK and DEL get the result of the ADD.
func (w *World) previous(conf Object, p *place, r *request) error {
	prev := p.prev
	if r.verb == spec.Check || r.verb == spec.Del {
		prev = p.Result
	}
	perContainer := r.verb == spec.Add || r.verb == spec.Check || r.verb == spec.Del
	if prev == nil || !perContainer || r.get("prev", "") == "none" {
		return nil
	}
	data, err := prev.Encode(w.version)
	if err != nil && !spec.AtLeast(w.version, "0.4.0") {
		return nil // there is no prevResult for CHECK and DEL before, so it need not be expressible: one without addresses is not before 0.3.0
	}
	if err != nil {
		return err
	}
	conf["prevResult"] = data
	return nil
}

// attachments encodes the list of valid attachments for a GC.
func (w *World) attachments(names string) (json.RawMessage, error) {
	list := []spec.AttachmentKey{}
	for _, name := range strings.Split(names, ",") {
		if name == "none" {
			continue
		}
		p, err := w.place(name)
		if err != nil {
			return nil, err
		}
		list = append(list, spec.AttachmentKey{ContainerID: p.ContainerID, IfName: p.IfName})
	}
	return json.Marshal(list)
}

func text(s string) json.RawMessage {
	var b bytes.Buffer
	_ = json.NewEncoder(&b).Encode(s) // encoding a string cannot fail
	return bytes.TrimSpace(b.Bytes())
}
