// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package resident

// Failure is the last failure of one subject. The zero value is no failure. It has no
// lock: callers that share one already hold the lock of the subject.
type Failure struct {
	text string
}

// Changed notes err, which is nil when all is well, and reports whether its text differs from
// the last one; for nil, whether there was a failure to clear. After that, any failure is
// news again. Errors are compared by the text that a reader sees.
func (f *Failure) Changed(err error) bool {
	was := f.text
	f.text = ""
	if err != nil {
		f.text = err.Error()
	}
	return f.text != was
}

// String is the text of the failure, "" when all is well.
func (f Failure) String() string { return f.text }
