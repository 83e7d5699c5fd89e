package kafka

// Encode is encode.
var Encode = encode

// Decode is decode.
var Decode = decode
